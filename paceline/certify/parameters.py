"""parameter/...: every sampling parameter has its effect, and the same one with speculation on."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.certify.asker import Asker, Reply
from paceline.certify.check import Check, refused, unless_refused
from paceline.certify.differences import differences
from paceline.certify.effects import LOGPROB_TOLERANCE
from paceline.certify.trial import Trial, unusable
from paceline.events import DraftPolicy, Request, TokenLogprobs
from paceline.params import Speculation
from paceline.server import Refusal

AT_ONCE = 8


async def parameter_checks(
    asker: Asker, base: Sequence[Request], trials: Sequence[Trial]
) -> list[Check]:
    """One check for each trial; they were made of `base`. Raises Unreachable."""
    every = {f"parameter/{trial.name}": trial for trial in trials}
    off = [_speculating(request, Speculation.OFF) for request in base]
    try:
        plain = await asker.ask_all("parameters, speculation off", off, at_once=AT_ONCE)
    except Refusal as refusal:
        return [refused(name, refusal) for name in every]
    if problem := unusable(plain):
        return [Check(name, False, problem) for name in every]
    return [
        await unless_refused(name, _parameter_check(asker, name, trial, plain))
        for name, trial in every.items()
    ]


async def _parameter_check(asker: Asker, name: str, trial: Trial, plain: Sequence[Reply]) -> Check:
    requests = trial.requests(plain)
    both = [_speculating(r, s) for s in (Speculation.OFF, Speculation.FIXED) for r in requests]
    replies = await asker.ask_all(name, both, at_once=AT_ONCE)
    off, on = replies[: len(requests)], replies[len(requests) :]
    problem = trial.judge(plain, off) or unlike(off, on)
    num_drafted = sum(reply.num_drafted for reply in on)
    return Check(
        name,
        not problem,
        problem
        or f"has its effect, and the same with speculation on: {len(requests)} answers, "
        f"{num_drafted} draft tokens verified",
    )


def unlike(off: Sequence[Reply], on: Sequence[Reply]) -> str:
    """How answers with speculation on differ from those with it off; empty when they do not."""
    found = differences(off, on)
    if found:
        return (
            f"{len(found)} of {len(off)} answers differ with speculation on, the first at position "
            f"{found[0].position}"
        )
    for plain, speculative in zip(off, on, strict=True):
        ends = (plain.text, plain.finish_reason, plain.stop)
        if ends != (speculative.text, speculative.finish_reason, speculative.stop):
            return "text or finish reason differ with speculation on"
        if not _alike(plain.logprobs, speculative.logprobs):
            return "log-probabilities differ with speculation on"
    return ""


def _alike(off: Sequence[TokenLogprobs], on: Sequence[TokenLogprobs]) -> bool:
    return len(off) == len(on) and all(
        abs(one - other) <= LOGPROB_TOLERANCE
        for plain, speculative in zip(off, on, strict=True)
        for one, other in zip(
            (plain.logprob, *plain.top_logprobs),
            (speculative.logprob, *speculative.top_logprobs),
            strict=True,
        )
    )


def _speculating(request: Request, speculation: Speculation) -> Request:
    return replace(request, draft=DraftPolicy(speculation))
