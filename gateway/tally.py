"""Tally: what an answer has come to so far. Counts what was delivered and nothing else. Pure."""

import hashlib
import struct
from collections.abc import Sequence

from paceline.events import Delta, Finished
from paceline.rounds import FinishReason, SpeculationTotals


class Tally:
    """What an answer has come to so far."""

    def __init__(self, num_prompt_tokens: int, generated_token_ids: Sequence[int] = ()) -> None:
        """`generated_token_ids` were delivered before: part of the answer's count and digest."""
        self._num_prompt_tokens = num_prompt_tokens
        self._num_cached_tokens: int | None = None
        self._num_tokens = 0
        self._num_failovers = 0
        self._first_s: float | None = None
        self._totals = SpeculationTotals()
        self._hash = hashlib.sha256()
        self._count(generated_token_ids)

    def add(self, delta: Delta, elapsed_s: float) -> None:
        if self._first_s is None:
            self._first_s = elapsed_s
        self._count(delta.token_ids)
        if delta.round:
            self._totals.add_round(delta.round)
        if delta.prefill and self._num_cached_tokens is None:
            # The first prefill is the request's; another one is the price of a failover.
            self._num_cached_tokens = delta.prefill.num_cached_tokens

    def add_failover(self) -> None:
        self._num_failovers += 1

    def digest(self) -> bytes:
        """SHA-256 over the delivered ids as little-endian 32-bit integers."""
        return self._hash.digest()

    def finished(self, reason: FinishReason, stop: str, elapsed_s: float) -> Finished:
        return Finished(
            finish_reason=reason,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens or 0,
            num_completion_tokens=self._num_tokens,
            totals=self._totals,
            time_to_first_token_us=round((self._first_s or 0.0) * 1e6),
            duration_us=round(elapsed_s * 1e6),
            digest=self.digest(),
            stop=stop,
            num_failovers=self._num_failovers,
        )

    def _count(self, token_ids: Sequence[int]) -> None:
        self._num_tokens += len(token_ids)
        self._hash.update(struct.pack(f"<{len(token_ids)}I", *token_ids))
