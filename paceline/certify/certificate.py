"""All checks of one gateway, in the order they are reported."""

from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from paceline.certify.asker import Asker, Progress
from paceline.certify.check import Check, refused, unless_refused
from paceline.certify.distribution import distribution_checks
from paceline.certify.equality import BUILT_IN, Prompt, equality_check
from paceline.certify.parameters import parameter_checks
from paceline.certify.trial import base_requests
from paceline.certify.trials import trials
from paceline.client import GatewayClient
from paceline.rounds import SpeculationTotals
from paceline.server import Refusal

TEMPERATURES = (0.0, 0.8)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is asked. `samples` answers on each side of a comparison of distributions."""

    prompts: Sequence[Prompt] = BUILT_IN
    max_tokens: int = 24
    samples: int = 300
    seed: int = 1
    allow_no_drafter: bool = False


async def certify(address: str, plan: Plan, progress: Progress) -> list[Check]:
    """Every check; what the gateway refuses is a failed one. Raises Unreachable."""
    async with GatewayClient(address) as client:
        try:
            models = await client.list_models()
            if not models:
                raise Refusal(grpc.StatusCode.UNAVAILABLE, "no model is served")
        except Refusal as refusal:
            return [refused("model", refusal)]
        asker = Asker(client, models[0], progress)
        equality = [
            await unless_refused(
                f"equality/T={temperature:g}",
                equality_check(
                    asker,
                    plan.prompts,
                    temperature=temperature,
                    max_tokens=plan.max_tokens,
                    seed=plan.seed,
                ),
            )
            for temperature in TEMPERATURES
        ]
        distribution = await distribution_checks(
            asker,
            samples=plan.samples,
            seed=plan.seed,
            allow_no_drafter=plan.allow_no_drafter,
        )
        base = base_requests(plan.seed)
        parameters = await parameter_checks(asker, base, trials(base))
    drafts = drafts_check(asker.totals, allow_no_drafter=plan.allow_no_drafter)
    return [*equality, drafts, *distribution, *parameters]


def drafts_check(totals: SpeculationTotals, *, allow_no_drafter: bool) -> Check:
    """Without any draft all of the other checks compare plain decoding with itself."""
    if totals.num_drafted:
        detail = (
            f"{totals.num_drafted} draft tokens verified, acceptance rate "
            f"{totals.acceptance_rate:.2f}"
        )
    else:
        detail = (
            "no draft token was verified, so nothing is certified of speculation: is a drafter "
            "connected to the verifier?"
        )
    return Check("drafts/seen", totals.num_drafted > 0 or allow_no_drafter, detail)
