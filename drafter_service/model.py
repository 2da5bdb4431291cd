"""A draft model as a drafter: one forward per step for every sequence that wants tokens.

The only module of this service that loads torch. It applies each request's own parameters and noise
to its logits, so that a model drafting for itself is always right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafter_service.drafter import NoRoomError
from drafter_service.state import DraftState
from drafter_service.updates import Distribution
from paceline.model.cache import CapacityError, SequenceCache
from paceline.model.engine import LanguageModel, Rows
from paceline.model.load import LoadError, load_model
from paceline.model.numerics import NotExact
from paceline.params import SamplingMode
from paceline.rejection import DraftDistribution, draw, quantised
from paceline.rounds import TokenSource
from paceline.sampling import Chooser, NotFinite, NothingLeft, SamplingState

# Rows of one forward. A long prompt is read in pieces of this size, between which updates are
# applied and the other sequences get their tokens.
MAX_STEP_ROWS = 256


@dataclass(slots=True)
class _Reading:
    """How far the model has read a sequence, and what its next token depends on."""

    cache: SequenceCache
    sampling: SamplingState
    chooser: Chooser
    # REJECTION: what the draft tokens from position `first` on were sampled from.
    first: int = 0
    distributions: list[DraftDistribution] = field(default_factory=list)


class ModelDrafter:
    """Drafts what the draft model would choose."""

    source = TokenSource.DRAFT_MODEL

    def __init__(self, model: LanguageModel, *, max_step_rows: int = MAX_STEP_ROWS) -> None:
        self._model = model
        self._max_step_rows = max_step_rows
        self._readings: dict[DraftState, _Reading] = {}
        self._choosers: dict[int, Chooser] = {}
        self.name = model.name
        self.tokenizer_fingerprint = model.tokenizer_fingerprint
        self.vocab_size = model.vocab_size
        self.max_context = model.max_context
        self.eos_token_ids = model.eos_token_ids

    def attach(self, state: DraftState) -> None:
        try:
            cache = self._model.new_cache()
        except CapacityError as error:
            raise NoRoomError from error
        # The target's vocabulary, which may be the smaller one: what is above is never chosen.
        vocab_size = min(state.vocab_size, self.vocab_size)
        if vocab_size not in self._choosers:
            self._choosers[vocab_size] = Chooser(vocab_size, is_sparse=self._model.has_reduced_head)
        sampling = SamplingState(
            state.params,
            state.seed,
            state.token_ids[: state.num_prompt_tokens],
            state.token_ids[state.num_prompt_tokens :],
            vocab_size=vocab_size,
            end_token_ids=self.eos_token_ids,
        )
        self._readings[state] = _Reading(cache, sampling, self._choosers[vocab_size])

    def rollback(self, state: DraftState, length: int) -> None:
        reading = self._readings[state]
        reading.cache.rollback(min(length, reading.cache.length))
        reading.sampling.pop(max(reading.sampling.position - length, 0))
        del reading.distributions[max(length - reading.first, 0) :]

    def detach(self, state: DraftState) -> None:
        reading = self._readings.pop(state)
        reading.cache.free()

    def extend(self, states: Sequence[DraftState]) -> list[list[int] | None]:
        """One forward: a token for each sequence that it reads to the end."""
        proposals: list[list[int] | None] = [[] for _ in states]
        rows, read = self._next_rows(states)
        # On the CPU, where the parameters are applied and the noise is drawn.
        logits = self._model.forward(rows).cpu()  # [len(read), at least vocab_size]
        for index, row in zip(read, logits, strict=True):
            token_id = self._choose(states[index], row)
            proposals[index] = None if token_id is None else [token_id]
        return proposals

    def _next_rows(self, states: Sequence[DraftState]) -> tuple[list[Rows], list[int]]:
        """What to feed, shortest first, and the indices of the sequences that it reads to the end,
        in the same order."""
        left = self._max_step_rows
        rows: list[Rows] = []
        read: list[int] = []
        unread = {index: self._unread(state) for index, state in enumerate(states)}
        for index in sorted(unread, key=lambda i: len(unread[i])):
            token_ids = unread[index][:left]
            if not token_ids:
                break
            left -= len(token_ids)
            is_read = len(token_ids) == len(unread[index])
            rows.append(Rows(self._readings[states[index]].cache, token_ids, int(is_read)))
            if is_read:
                read.append(index)
        return rows, read

    def _unread(self, state: DraftState) -> list[int]:
        """The tokens that the model has yet to see: at least one, whose logits are wanted."""
        cache = self._readings[state].cache
        cache.rollback(min(cache.length, len(state.token_ids) - 1))
        return state.token_ids[cache.length :]

    def _choose(
        self,
        state: DraftState,
        logits: Tensor,  # [at least vocab_size]
    ) -> int | None:
        """The next token, or None when there is none to choose."""
        reading = self._readings[state]
        for token_id in state.token_ids[reading.sampling.position :]:
            reading.sampling.append(token_id)
        try:
            if state.params.mode is SamplingMode.REJECTION:
                return self._draw(state, reading, logits)
            return reading.chooser.choose(logits, reading.sampling)
        except (NotFinite, NothingLeft):
            return None

    def _draw(self, state: DraftState, reading: _Reading, logits: Tensor) -> int:
        """A sample of the draft distribution, which is kept as it will be sent."""
        probs = reading.chooser.probs(logits, reading.sampling)
        distribution = quantised(probs.log())
        position = reading.sampling.position
        if position != reading.first + len(reading.distributions):
            reading.first, reading.distributions = position, []
        reading.distributions.append(distribution)
        return draw(distribution, state.seed, state.run_start, position)

    def distributions(self, state: DraftState, start: int, end: int) -> Sequence[Distribution]:
        reading = self._readings[state]
        return [
            (distribution.token_ids.tolist(), distribution.weights.tolist())
            for distribution in reading.distributions[start - reading.first : end - reading.first]
        ]


def open_model_drafter(
    source: str, *, dtype: str, max_sequences: int, numerics: str, threads: int
) -> ModelDrafter:
    """Loads a model, which takes seconds. Exits when there is none to load."""
    torch.set_num_threads(threads)
    try:
        model = load_model(source, dtype=dtype, max_sequences=max_sequences, numerics=numerics)
    except (LoadError, NotExact) as error:
        raise SystemExit(f"drafter_service: {error}") from error
    return ModelDrafter(model)
