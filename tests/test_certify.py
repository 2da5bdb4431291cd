"""Certify passes on sound services and names what is broken in unsound ones: none may slip by."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from in_process import services
from tiny import save_tiny_llama

import paceline.rejection
import verifier_service.round
import verifier_service.servicer
from drafter_service.config import DrafterSettings
from paceline.certify.asker import Asker, Reply
from paceline.certify.certificate import Plan, certify, drafts_check
from paceline.certify.check import Check
from paceline.certify.differences import differences
from paceline.certify.distribution import distribution_checks, judge, pairs
from paceline.certify.endings import stop_in
from paceline.certify.equality import BUILT_IN, equality_check
from paceline.certify.parameters import parameter_checks
from paceline.certify.trial import base_requests
from paceline.certify.trials import trials
from paceline.client import GatewayClient
from paceline.params import SamplingParams, Speculation
from paceline.rounds import SpeculationTotals
from paceline.sampling import Verdict, verify

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARAMETERS = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "logit_bias", "seed", "min_tokens", "max_tokens", "stop_token_ids"),
    *("stop", "logprobs"),
)
SAMPLES = 150


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("target")))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def address(target: str) -> AsyncIterator[str]:
    async with services(target, DrafterSettings(drafter="lookup")) as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module")
async def asker(address: str) -> AsyncIterator[Asker]:
    async with GatewayClient(address) as client:
        (model,) = await client.list_models()
        yield Asker(client, model, lambda *_: None)


async def try_parameters(asker: Asker, *names: str) -> list[str]:
    """The parameters whose checks fail, of those named or of all."""
    base = base_requests(1)
    chosen = [trial for trial in trials(base) if not names or trial.name in names]
    assert len(chosen) == (len(names) or len(PARAMETERS))
    checks = await parameter_checks(asker, base, chosen)
    return [name.removeprefix("parameter/") for name in failed(checks)]


def failed(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.passed]


def edit_params(
    monkeypatch: pytest.MonkeyPatch, *, only_with: Speculation | None = None, **values: Any
) -> None:
    """Makes the verifier take these values for whatever is asked, perhaps of some requests only."""
    sound = verifier_service.servicer.VerifierServicer._request

    def unsound(self: Any, message: Any) -> Any:
        request = sound(self, message)
        if only_with not in (None, request.speculation):
            return request
        return replace(request, params=replace(request.params, **values))

    monkeypatch.setattr(verifier_service.servicer.VerifierServicer, "_request", unsound)


async def test_sound_services_pass_every_check(address: str):
    stages: dict[str, list[tuple[int, int]]] = {}
    plan = Plan(prompts=BUILT_IN[:3], max_tokens=12, samples=60)
    checks = await certify(
        address, plan, lambda stage, done, total: stages.setdefault(stage, []).append((done, total))
    )
    assert [check.name for check in checks] == [
        *("equality/T=0", "equality/T=0.8", "drafts/seen"),
        *("distribution/coupled", "distribution/rejection"),
        *(f"parameter/{name}" for name in PARAMETERS),
    ]
    assert [check for check in checks if not check.passed] == []
    for check in checks[:5]:
        assert " 0 draft tokens verified" not in check.detail, check
    assert checks[0].detail.startswith("3/3 prompts identical; ")
    # One among eight, whatever the number of prompts.
    assert stages["equality/T=0, on among 8"][-1] == (8, 8)
    for counts in stages.values():
        assert counts == [(done, counts[0][1]) for done in range(counts[0][1] + 1)]


@pytest.mark.slow
async def test_sound_services_with_another_draft_model_pass(target: str, tmp_path: Path):
    """Its drafts are often wrong, and in REJECTION come with their distributions."""
    draft = str(save_tiny_llama(tmp_path, seed=1))
    drafter = DrafterSettings(drafter="model", model=draft, dtype="float32")
    async with services(target, drafter) as address, GatewayClient(address) as client:
        (model,) = await client.list_models()
        asker = Asker(client, model, lambda *_: None)
        checks = await distribution_checks(asker, samples=60, seed=1, allow_no_drafter=False)
        assert failed(checks) == []
        assert 0.0 < asker.totals.acceptance_rate < 1.0
        assert await try_parameters(asker, "frequency_penalty", "logit_bias", "stop") == []


@pytest.mark.slow
async def test_the_command_ends_with_one_line_of_json(address: str):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "paceline.cli.main", "certify", "--target", address, "--json"),
        *("--samples", "60", "--limit", "2", "--max-tokens", "8"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stdout.decode() + stderr.decode()
    (line,) = stdout.decode().splitlines()
    found = json.loads(line)
    assert found["passed"] is True
    assert {check["name"] for check in found["checks"]} >= {"drafts/seen", "parameter/stop"}
    assert "certifying: distribution/rejection" in stderr.decode()


async def test_a_skipped_residual_is_no_longer_the_targets_distribution(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
):
    """After a rejection sampling from p, not from what p has more than q."""
    monkeypatch.setattr(paceline.rejection, "residual_distribution", lambda p, weight, q: p)
    checks = await distribution_checks(asker, samples=SAMPLES, seed=1, allow_no_drafter=False)
    assert failed(checks) == ["distribution/rejection"]
    assert checks[1].detail.startswith("not the distribution of plain decoding: ")


@pytest.mark.slow
async def test_a_block_that_is_believed_is_seen_by_equality_and_distribution(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
):
    def believe(chooser: Any, logits: Any, draft: Any, state: Any, _: Any, parents: Any) -> Verdict:
        path: list[int] = []
        for node, parent in enumerate(parents):
            if parent == (path[-1] if path else -1):
                path.append(node)
                state.append(draft[node])
        last = path[-1] + 1 if path else 0
        verdict = verify(chooser, logits[last : last + 1], (), state)
        accepted = [draft[node] for node in path]
        return Verdict([*accepted, *verdict.token_ids], path, len(path))

    monkeypatch.setattr(verifier_service.round, "verify", believe)
    equality = await equality_check(asker, BUILT_IN[:2], temperature=0.0, max_tokens=12, seed=1)
    assert not equality.passed
    assert "/2 prompts identical; prompt 1, position " in equality.detail
    checks = await distribution_checks(asker, samples=SAMPLES, seed=1, allow_no_drafter=False)
    assert failed(checks) == ["distribution/coupled", "distribution/rejection"]


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"frequency_penalty": 0.0}, "frequency_penalty"),
        ({"presence_penalty": 2.0}, "presence_penalty"),
        ({"temperature": 1.0}, "temperature"),
        ({"top_p": 1.0}, "top_p"),
        ({"min_p": 0.0}, "min_p"),
        ({"top_k": 0}, "top_k"),
        ({"repetition_penalty": 1.0}, "repetition_penalty"),
        ({"logit_bias": {}}, "logit_bias"),
        ({"min_tokens": 0}, "min_tokens"),
        ({"max_tokens": 20}, "max_tokens"),
        ({"num_logprobs": None}, "logprobs"),
    ],
)
async def test_a_parameter_that_is_ignored_is_named(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], name: str
):
    edit_params(monkeypatch, **values)
    assert await try_parameters(asker, name, "seed") == [name]


async def test_ignored_stop_tokens_and_seeds_are_named(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as broken:
        edit_params(broken, stop_token_ids=())
        assert await try_parameters(asker, "stop_token_ids", "seed") == ["stop_token_ids"]
    sound = verifier_service.servicer.VerifierServicer._request
    monkeypatch.setattr(
        verifier_service.servicer.VerifierServicer,
        "_request",
        lambda self, message: replace(sound(self, message), seed=5),
    )
    assert await try_parameters(asker, "seed", "top_k") == ["seed"]


@pytest.mark.parametrize("speculation", [Speculation.OFF, Speculation.FIXED])
async def test_a_parameter_that_is_honoured_in_one_of_two_ways_only_is_named(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, speculation: Speculation
):
    edit_params(monkeypatch, only_with=speculation, frequency_penalty=0.0)
    assert await try_parameters(asker, "frequency_penalty", "seed") == ["frequency_penalty"]


async def test_an_answer_too_short_to_vary_fails_every_trial(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
):
    edit_params(monkeypatch, max_tokens=2)
    assert await try_parameters(asker) == list(PARAMETERS)


async def test_a_model_cannot_be_certified_without_a_draft():
    assert not drafts_check(SpeculationTotals(), allow_no_drafter=False).passed
    assert drafts_check(SpeculationTotals(), allow_no_drafter=True).passed
    assert drafts_check(SpeculationTotals(num_drafted=1), allow_no_drafter=False).passed
    plain = [Reply(token_ids=[index % 2, 1, 2]) for index in range(100)]
    found = judge("d", [1, 2], plain, plain, allow_no_drafter=False)
    assert not found.passed
    assert found.detail.startswith("no draft token was verified")
    assert judge("d", [1, 2], plain, plain, allow_no_drafter=True).passed


async def test_answers_that_do_not_vary_compare_nothing():
    same = [Reply(token_ids=[1, 2, 3], num_drafted=1)] * 100
    found = judge("d", [1, 2], same, same, allow_no_drafter=False)
    assert not found.passed
    assert found.detail.startswith("the answers do not vary")


async def test_the_first_difference_is_where_one_answer_ends_if_nowhere_else():
    before = [Reply(token_ids=[1, 2, 3]), Reply(token_ids=[1, 2])]
    after = [Reply(token_ids=[1, 5, 3]), Reply(token_ids=[1])]
    first, second = differences(before, after)
    assert first.describe("off", "on") == "prompt 1, position 1: token 2 off, token 5 on"
    assert second.describe("off", "on") == "prompt 2, position 1: token 2 off, the end on"
    assert differences(before, before) == []


async def test_the_prompt_of_the_samples_holds_every_pair_once():
    for size in (2, 3, 5):
        ids = pairs(list(range(size)))
        found = list(itertools.pairwise(ids))
        assert len(found) == len(set(found)) == size**2


async def test_a_stop_string_is_whole_characters_from_within_the_text():
    assert stop_in("abcdef") == "cd"
    assert stop_in("ab\ufffdcdef") == "cd"
    assert stop_in("abc") == stop_in("") == stop_in("ab\ufffdc\ufffde\ufffd") == ""


async def test_the_plan_asks_with_limits_that_every_gateway_takes():
    assert SamplingParams().max_tokens >= Plan().max_tokens
    assert all(isinstance(prompt, str) and prompt for prompt in BUILT_IN)
    assert len(BUILT_IN) == 8
