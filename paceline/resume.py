"""An answer that can go on at another gateway: what the caller has of it, and what it asks next.

Pure; the clock is passed in. Knows no gateway and no message. Same input, parameters and seed give
the same tokens, so the tokens so far are all that must be kept.
"""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace

import grpc

from paceline.events import Delta, Event, Finished, Request, Started
from paceline.rounds import SpeculationTotals
from paceline.server import Refusal


class ResumableAnswer:
    """One answer, over as many calls as it takes."""

    def __init__(self, request: Request, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._request = request
        self._clock = clock
        self._began = clock()
        self._started: Started | None = None
        self._token_ids = list(request.generated_token_ids)
        self._totals = SpeculationTotals()
        # Rounds of the calls before this one.
        self._num_rounds = 0
        self._num_calls = 0
        self._has_rest = False

    @property
    def has_started(self) -> bool:
        return self._started is not None

    def request(self) -> Request:
        """What to ask a gateway for: the answer, or what is missing of it."""
        self._num_calls += 1
        self._num_rounds = self._totals.num_rounds
        if self._started is None:
            return self._request
        left_ms = 0
        if self._request.timeout_ms:
            spent_ms = int((self._clock() - self._began) * 1000)
            left_ms = max(1, self._request.timeout_ms - spent_ms)
        return replace(
            self._request,
            seed=self._started.seed,
            generated_token_ids=tuple(self._token_ids),
            model=self._started.model,
            model_fingerprint=self._started.model_fingerprint,
            timeout_ms=left_ms,
        )

    def take(self, event: Event) -> Event | None:
        """The event as the caller gets it, or None if it had it before.

        Raises DATA_LOSS when the tokens are not those whose digest the gateway sends.
        """
        match event:
            case Started():
                if self._started is not None:
                    return None
                self._started = event
                return event
            case Delta():
                return self._take_delta(event)
            case Finished():
                return self._take_finished(event)

    def _take_delta(self, delta: Delta) -> Delta | None:
        self._token_ids += delta.token_ids
        if delta.round:
            delta = replace(
                delta, round=replace(delta.round, round=self._num_rounds + delta.round.round)
            )
        if delta.round:
            self._totals.add_round(delta.round)
        if delta.token_ids:
            return delta
        # Text without a token is what was held back at the end: it may come again with the end.
        had, self._has_rest = self._has_rest, True
        return None if had else delta

    def _take_finished(self, finished: Finished) -> Finished:
        ids = struct.pack(f"<{len(self._token_ids)}I", *self._token_ids)
        if hashlib.sha256(ids).digest() != finished.digest:
            raise Refusal(
                grpc.StatusCode.DATA_LOSS, "the answer differs from what the gateway delivered"
            )
        if self._num_calls == 1:
            return finished
        return replace(
            finished,
            totals=self._totals,
            num_failovers=finished.num_failovers + self._num_calls - 1,
        )
