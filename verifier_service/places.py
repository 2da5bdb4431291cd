"""Places: which sequences wait, which run, and who goes back when KV blocks run short.

Used on the engine's thread; other threads may look at the lengths. Knows no drafter and no event.
"""

import time
from collections import deque
from dataclasses import replace

from paceline.model.cache import CapacityError, SequenceCache
from paceline.model.engine import LanguageModel
from verifier_service.mailbox import Draft
from verifier_service.sequence import VerifierSequence
from verifier_service.turns import Step


class Places:
    """Every sequence between its admission and its end."""

    def __init__(self, model: LanguageModel) -> None:
        self.waiting: deque[VerifierSequence] = deque()
        # In order of admission.
        self.running: list[VerifierSequence] = []
        self.num_preemptions = 0
        self._by_number: dict[int, VerifierSequence] = {}
        self._model = model

    @property
    def all(self) -> list[VerifierSequence]:
        return [*self.running, *self.waiting]

    @property
    def has_work(self) -> bool:
        return any(not sequence.is_paused for sequence in self.all)

    def find(self, number: int) -> VerifierSequence | None:
        return self._by_number.get(number)

    def enter(self, sequence: VerifierSequence) -> None:
        """Last in line."""
        self._by_number[sequence.number] = sequence
        self.waiting.append(sequence)

    def leave(self, sequence: VerifierSequence) -> None:
        """Safe to repeat."""
        self._by_number.pop(sequence.number, None)
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence.cache is not None:
            sequence.cache.free()
            sequence.cache = None

    def overdue(self) -> list[VerifierSequence]:
        """Sequences whose time for an answer ran out."""
        now_ns = time.monotonic_ns()
        return [sequence for sequence in self.all if _is_overdue(sequence, now_ns)]

    def admit(self) -> None:
        """Let run who waits, in order, as far as there is room. Whoever is paused makes room, and
        is not let in again before it has credit."""
        while (sequence := next((s for s in self.waiting if not s.is_paused), None)) is not None:
            if self._try_admit(sequence):
                continue
            paused = [s for s in self.running if s.is_paused]
            if not paused:
                return
            self._preempt(paused[-1])

    def _try_admit(self, sequence: VerifierSequence) -> bool:
        try:
            cache = self._model.new_cache()
        except CapacityError:
            return False
        num_cached = cache.adopt(sequence.token_ids, salt=sequence.request.tenant)
        if self.running and not self._has_room(cache, len(sequence.token_ids) + 1):
            cache.free()
            return False
        self.waiting.remove(sequence)
        sequence.cache = cache
        if not sequence.prefill_started_ns:
            sequence.prefill_started_ns = time.monotonic_ns()
            # Of an answer that is opened again, tokens of the answer may be cached, too.
            sequence.num_cached = min(num_cached, len(sequence.request.prompt))
        self.running.append(sequence)
        return True

    def _has_room(self, cache: SequenceCache, length: int) -> bool:
        return cache.num_missing(length) <= self._model.store.blocks_free

    def make_room(self, step: Step) -> Step:
        """Turns that fit the KV cache: drafts yield first, then who is paused, then whoever was
        admitted last."""
        store, turns = self._model.store, step.turns
        if sum(turn.num_missing_blocks for turn in turns) > store.blocks_free:
            turns = [replace(turn, draft=Draft()) for turn in turns]
        while sum(turn.num_missing_blocks for turn in turns) > store.blocks_free:
            paused = [s for s in self.running if s.is_paused]
            self._preempt((paused or self.running)[-1])
            turns = [turn for turn in turns if turn.sequence.cache is not None]
        return step if turns is step.turns else replace(step, turns=turns)

    def _preempt(self, sequence: VerifierSequence) -> None:
        """Back into the queue, first in line; its tokens are computed again later."""
        assert sequence.cache is not None
        sequence.cache.free()
        sequence.cache = None
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1


def _is_overdue(sequence: VerifierSequence, now_ns: int) -> bool:
    limit_s = sequence.request.timeout_s
    return limit_s is not None and now_ns - sequence.admitted_ns > limit_s * 1e9
