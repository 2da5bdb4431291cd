"""Requests to a gateway under several draft policies in turns, and the ratios of what they took.

Knows no service and no scenario. Times in seconds; the first policy is what others are compared to.
"""

import asyncio
import contextlib
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.client import GatewayClient
from paceline.events import ChatMessage, Delta, DraftPolicy, Finished, Request
from paceline.params import SamplingParams, Speculation

PLAIN = DraftPolicy(Speculation.OFF)
PACED = DraftPolicy(Speculation.AUTO)
# Drafts, waits, verifies, drafts again: the loop that pacing is to beat on a slow network.
SERIAL = DraftPolicy(Speculation.FIXED, max_draft_tokens=8)

PROMPTS = Path(__file__).resolve().parent / "prompts.jsonl"

_numbers = itertools.count(1)


def prompts_by_category() -> dict[str, list[str]]:
    """Texts of the users' first messages."""
    found: dict[str, list[str]] = {}
    for line in PROMPTS.read_text().splitlines():
        prompt = json.loads(line)
        text = next(m["content"] for m in prompt["messages"] if m["role"] == "user")
        found.setdefault(prompt["category"], []).append(text)
    return found


@dataclass(frozen=True)
class Answer:
    """first_tokens: in the first message, of them drafted: whether a draft was there in time."""

    first_s: float
    total_s: float
    first_tokens: int
    was_drafted: bool
    num_tokens: int
    num_accepted: int

    @property
    def per_token_s(self) -> float:
        """Time per token after the first message, as clients see it."""
        return (self.total_s - self.first_s) / max(self.num_tokens - self.first_tokens, 1)


@dataclass
class Runs:
    """All runs of one policy: tokens per second of each, and the answers of all."""

    tokens_per_s: list[float] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


@dataclass(frozen=True)
class Ratios:
    """speed: the median of what each round gave, above 1 is faster. The others: of medians and 95th
    percentiles, below 1 is faster."""

    speed: float
    p95: float
    first_p50: float
    first_p95: float
    # Of first messages: more than one token; and of those whose draft was there in time.
    first_long: float
    first_long_if_drafted: float | None
    # Draft tokens accepted, as a share of all tokens.
    accepted: float
    plain_tokens_per_s: float


def numbered(prompts: Sequence[str]) -> list[str]:
    """Prompts that are like no others from the start on, so that none is in the prefix cache."""
    return [f"{next(_numbers):05d}. {prompt}" for prompt in prompts]


async def ask(
    client: GatewayClient, prompt: str, max_tokens: int, policy: DraftPolicy, workload: str = ""
) -> Answer:
    """One greedy answer of exactly so many tokens."""
    request = Request(
        [ChatMessage("user", prompt)],
        SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
        seed=1,
        draft=policy,
        workload=workload.replace(" ", "-"),
    )
    start_s = time.perf_counter()
    first: Delta | None = None
    first_s, finished = 0.0, None
    async with contextlib.aclosing(client.generate(request)) as events:
        async for event in events:
            if first is None and isinstance(event, Delta) and event.round is not None:
                first, first_s = event, time.perf_counter() - start_s
            finished = event if isinstance(event, Finished) else finished
    total_s = time.perf_counter() - start_s
    if first is None or first.round is None or finished is None:
        raise RuntimeError("an answer did not finish")
    return Answer(
        first_s,
        total_s,
        len(first.token_ids),
        first.round.num_drafted > 0,
        finished.num_completion_tokens,
        finished.totals.num_accepted,
    )


async def in_turns(
    client: GatewayClient,
    prompts: Sequence[str],
    policies: Sequence[DraftPolicy],
    *,
    max_tokens: int,
    rounds: int,
    workload: str,
    seconds: float = math.inf,
    same_texts: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Runs]:
    """All prompts at once under each policy in turn, each policy first as often as the others.

    As many rounds as are wanted and fit the time, but at least two. With `same_texts` the policies
    of a round answer the very same prompts, which were read before; else every prompt is new.
    """
    runs = [Runs() for _ in policies]
    begin_s = time.perf_counter()
    for number in range(rounds):
        per_round_s = (time.perf_counter() - begin_s) / max(number, 1)
        if number >= 2 and per_round_s * (number + 1) > seconds:
            break
        pairs = list(zip(policies, runs, strict=True))
        turn = number % len(pairs)
        texts = numbered(prompts)
        if same_texts:
            await _together(client, texts, 1, PLAIN, workload)
        for policy, kept in pairs[turn:] + pairs[:turn]:
            texts = texts if same_texts else numbered(prompts)
            start_s = time.perf_counter()
            answers = await _together(client, texts, max_tokens, policy, workload)
            num_tokens = sum(answer.num_tokens for answer in answers)
            kept.tokens_per_s.append(num_tokens / (time.perf_counter() - start_s))
            kept.answers += answers
        latest = ", ".join(f"{kept.tokens_per_s[-1]:.1f}" for kept in runs)
        progress(f"round {number + 1} of {rounds}: {latest} tokens/s")
    return runs


async def _together(
    client: GatewayClient, texts: Sequence[str], max_tokens: int, policy: DraftPolicy, workload: str
) -> list[Answer]:
    return await asyncio.gather(*(ask(client, t, max_tokens, policy, workload) for t in texts))


async def compare(
    client: GatewayClient,
    prompts: Sequence[str],
    policies: Sequence[DraftPolicy],
    *,
    max_tokens: int,
    rounds: int,
    seconds: float,
    workload: str,
    progress: Callable[[str], None],
) -> list[Ratios]:
    """`in_turns`; ratios of all policies after the first."""
    runs = await in_turns(
        client,
        prompts,
        policies,
        max_tokens=max_tokens,
        rounds=rounds,
        workload=workload,
        seconds=seconds,
        progress=progress,
    )
    return [ratios(runs[0], other) for other in runs[1:]]


def speed(ours: Runs, others: Runs) -> float:
    """The median ratio of a turn: the machine's own pace drifts by more than what is looked for."""
    turns = zip(ours.tokens_per_s, others.tokens_per_s, strict=True)
    return statistics.median(mine / theirs for mine, theirs in turns)


def ratios(plain: Runs, ours: Runs) -> Ratios:
    drafted = [a.first_tokens > 1 for a in ours.answers if a.was_drafted]
    return Ratios(
        speed=speed(ours, plain),
        p95=_ratio(plain, ours, 0.95, lambda answer: answer.per_token_s),
        first_p50=_ratio(plain, ours, 0.5, lambda answer: answer.first_s),
        first_p95=_ratio(plain, ours, 0.95, lambda answer: answer.first_s),
        first_long=statistics.fmean(a.first_tokens > 1 for a in ours.answers),
        first_long_if_drafted=statistics.fmean(drafted) if drafted else None,
        accepted=sum(a.num_accepted for a in ours.answers)
        / sum(a.num_tokens for a in ours.answers),
        plain_tokens_per_s=statistics.median(plain.tokens_per_s),
    )


def _ratio(plain: Runs, ours: Runs, share: float, value: Callable[[Answer], float]) -> float:
    theirs, mine = (quantile([value(a) for a in runs.answers], share) for runs in (plain, ours))
    return mine / theirs


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two values nearest to it, in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
