"""Asking a gateway, and what tests want to know of an answer."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.client import GatewayClient
from paceline.events import (
    ChatMessage,
    Delta,
    DraftPolicy,
    Finished,
    Request,
    Started,
    TokenLogprobs,
)
from paceline.params import SamplingParams, Speculation
from paceline.rounds import RoundReport, TokenSource

PROMPTS = Path(__file__).parents[1] / "benchmarks" / "prompts.jsonl"


@dataclass
class Answer:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    rounds: list[RoundReport] = field(default_factory=list)
    started: Started | None = None
    finished: Finished | None = None

    @property
    def num_drafted(self) -> int:
        return sum(report.num_drafted for report in self.rounds)


def chat_prompts(count: int, *, max_chars: int = 700) -> list[list[ChatMessage]]:
    """Short bench prompts, taken across the categories."""
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    short = [
        [ChatMessage(m["role"], m["content"]) for m in line["messages"]]
        for line in lines
        if sum(len(m["content"]) for m in line["messages"]) <= max_chars
    ]
    step = len(short) // count
    return short[:: max(step, 1)][:count]


async def ask(
    client: GatewayClient,
    prompt: Sequence[ChatMessage] | Sequence[int] | str,
    params: SamplingParams,
    *,
    seed: int | None = 7,
    speculation: Speculation = Speculation.AUTO,
    draft_tokens: int = 0,
    stop: Sequence[str] = (),
    workload: str = "",
    forget: bool = False,
    on_delta=None,
) -> Answer:
    answer = Answer()
    request = Request(
        prompt=prompt,
        params=params,
        seed=seed,
        stop=stop,
        workload=workload,
        draft=DraftPolicy(speculation, draft_tokens, forget=forget),
    )
    async for event in client.generate(request):
        if isinstance(event, Started):
            answer.started = event
        elif isinstance(event, Delta):
            answer.text += event.text
            answer.token_ids += event.token_ids
            answer.sources += event.sources
            answer.logprobs += event.logprobs
            if event.round is not None:
                answer.rounds.append(event.round)
            if on_delta is not None:
                await on_delta(answer)
        else:
            answer.finished = event
    return answer


async def ask_all(address: str, requests: Sequence[dict], *, at_once: int = 6) -> list[Answer]:
    """Answers in order, up to `at_once` running together."""
    gate = asyncio.Semaphore(at_once)
    async with GatewayClient(address) as client:

        async def one(request: dict) -> Answer:
            async with gate:
                return await ask(client, **request)

        return list(await asyncio.gather(*map(one, requests)))
