"""Many answers of a target at once, through the engine, with what it might have said instead.

Each answer is what a verifier would give for the same prompt, parameters and seed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paceline.distill.corpus import Record
from paceline.model.cache import SequenceCache
from paceline.model.engine import LanguageModel, Rows
from paceline.params import SamplingParams
from paceline.sampling import Chooser, SamplingState

_PREFILL_ROWS = 256


@dataclass(frozen=True, slots=True)
class Job:
    """An answer to generate. `index` comes back with the record."""

    index: int
    prompt: list[int]
    temperature: float
    seed: int
    max_tokens: int
    # Its record is no answer but the question of a chat to come.
    is_question: bool = False


@dataclass(slots=True)
class _Running:
    job: Job
    cache: SequenceCache
    state: SamplingState
    top_ids: list[Tensor] = field(default_factory=list)
    top_logprobs: list[Tensor] = field(default_factory=list)

    def record(self) -> Record:
        job = self.job
        return Record(
            index=job.index,
            prompt=job.prompt,
            output=self.state.output,
            temperature=job.temperature,
            seed=job.seed,
            top_ids=torch.stack(self.top_ids),
            top_logprobs=torch.stack(self.top_logprobs),
        )


def generate(
    model: LanguageModel,
    next_job: Callable[[], Job | None],
    *,
    at_once: int,
    num_top: int,
    on_tokens: Callable[[int], None],
) -> Iterator[tuple[Job, Record]]:
    """Answers as they end. `next_job` is asked whenever there is room, `on_tokens` told of every
    step's tokens. Stops when nothing runs and there is no next job."""
    chooser = Chooser(model.vocab_size)
    running: list[_Running] = []
    try:
        while True:
            started = len(running)
            while len(running) < at_once and (job := next_job()) is not None:
                running.append(_open(model, job))
            _prefill(model, running[started:])
            if not running:
                return
            _step(model, chooser, running, num_top)
            on_tokens(len(running))
            ended = [r for r in running if _is_done(r, model.eos_token_ids)]
            running = [r for r in running if r not in ended]
            for one in ended:
                one.cache.free()
            for one in ended:
                yield one.job, one.record()
    finally:
        for one in running:
            one.cache.free()


def _open(model: LanguageModel, job: Job) -> _Running:
    params = SamplingParams(temperature=job.temperature, max_tokens=job.max_tokens)
    state = SamplingState(params, job.seed, job.prompt, vocab_size=model.vocab_size)
    return _Running(job, model.new_cache(), state)


def _prefill(model: LanguageModel, new: Sequence[_Running]) -> None:
    """All but the last token of each prompt: many short prompts to a forward."""
    batch: list[Rows] = []
    left = _PREFILL_ROWS
    for one in new:
        unread = one.job.prompt[:-1]
        while unread:
            batch.append(Rows(one.cache, unread[:left], 0))
            unread, left = unread[left:], left - len(batch[-1].token_ids)
            if not left:
                model.forward(batch)
                batch, left = [], _PREFILL_ROWS
    if batch:
        model.forward(batch)


def _step(
    model: LanguageModel, chooser: Chooser, running: Sequence[_Running], num_top: int
) -> None:
    rows = [Rows(r.cache, [(r.state.output or r.job.prompt)[-1]], 1) for r in running]
    logits = model.forward(rows)[:, : model.vocab_size].float()
    top = torch.topk(logits, min(num_top, model.vocab_size))
    logprobs = top.values - torch.logsumexp(logits, -1, keepdim=True)
    ids, logprobs, logits = top.indices.int().cpu(), logprobs.half().cpu(), logits.cpu()
    for index, one in enumerate(running):
        one.top_ids.append(ids[index])
        one.top_logprobs.append(logprobs[index])
        one.state.append(chooser.choose(logits[index], one.state))


def _is_done(one: _Running, eos_token_ids: Iterable[int]) -> bool:
    output = one.state.output
    return len(output) >= one.job.max_tokens or output[-1] in eos_token_ids
