"""One unbroken stream of tokens over verifiers that come and go. Knows no messages and no text.

A verifier decides tokens as a pure function of prompt, parameters, seed and position, so opening
elsewhere with the tokens so far gives the same continuation. What a lost verifier still sends is
never read: one stream is one attachment, and it is cancelled before the next one opens.
"""

import contextlib
import logging
import time
from array import array
from collections.abc import AsyncGenerator
from dataclasses import replace

import grpc

from gateway.sequences import Cause, Final, Lost, Open, Seam, ServedModel, Tokens
from gateway.verifier import Verifier
from gateway.verifiers import Verifiers, none_ready
from paceline.server import Refusal

log = logging.getLogger(__name__)

# Verifiers that may go down with a request before it is taken for the cause.
MAX_STRIKES = 2
# How long a verifier that failed a sequence, and is by all accounts still the same process, is left
# alone while nobody else takes it.
AVOID_S = 1.0
POLL_S = 0.1


class Failover:
    """Opens sequences, and opens them again elsewhere."""

    def __init__(self, verifiers: Verifiers, wait_s: float) -> None:
        """`wait_s`: how long an answer waits for a verifier to go on at."""
        self._verifiers = verifiers
        self._wait_s = wait_s

    async def generate(
        self, opening: Open, model: ServedModel, key: str
    ) -> AsyncGenerator[Tokens | Seam | Final, None]:
        """As `Verifier.generate`, with a `Seam` where the answer went on elsewhere.

        Raises UNAVAILABLE when nobody takes it (in time), ABORTED when two verifiers went down
        with it, and any other refusal of a verifier as it is.
        """
        opened_at = time.monotonic()
        token_ids = array("I", opening.generated_token_ids)
        num_rounds = opening.num_rounds
        strikes: list[tuple[Cause, Verifier]] = []
        search = _Search(self._verifiers, model, key, self._wait_s)
        verifier = self._verifiers.place(model, key)
        if verifier is None:
            raise none_ready()
        while True:
            place = (verifier.address, verifier.incarnation)
            again = replace(
                opening,
                generated_token_ids=tuple(token_ids),
                num_rounds=num_rounds,
                timeout_ms=_left_ms(opening.timeout_ms, opened_at),
            )
            try:
                async with contextlib.aclosing(verifier.generate(again)) as items:
                    async for item in items:
                        if isinstance(item, Tokens):
                            token_ids.extend(item.token_ids)
                            num_rounds = item.round.round if item.round else num_rounds
                            search.succeeded()
                        yield item
                return
            except Lost as lost:
                cause = lost.cause
                log.warning(
                    "verifier %s: %s after %d tokens", place[0], cause.value, len(token_ids)
                )
                # One that was only slow to answer, and is back, was not brought down.
                strikes = [(c, v) for c, v in strikes if c is Cause.DIED or not v.is_ready]
                if cause is not Cause.DRAINED:
                    strikes.append((cause, verifier))
                if len(strikes) >= MAX_STRIKES:
                    raise Refusal(
                        grpc.StatusCode.ABORTED,
                        f"{MAX_STRIKES} verifiers went down with this request; it is not tried "
                        "again",
                    ) from lost
                verifier = await search.next(place, lost)
            except Refusal as refusal:
                if refusal.code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                # Its queue is full; another's may not be. An answer under way waits for a place.
                has_begun = num_rounds > opening.num_rounds or bool(strikes)
                verifier = await search.next(place, refusal, may_wait=has_begun)
                continue
            yield Seam(len(token_ids), cause)


class _Search:
    """The search for a verifier to go on at, from the first that failed to the next tokens."""

    def __init__(self, verifiers: Verifiers, model: ServedModel, key: str, wait_s: float) -> None:
        self._verifiers = verifiers
        self._model, self._key = model, key
        self._wait_s = wait_s
        self.succeeded()

    def succeeded(self) -> None:
        """Tokens came: the next failure begins a new search."""
        self._began_at: float | None = None
        self._avoid: dict[tuple[str, int], float] = {}

    async def next(
        self, failed: tuple[str, int], error: Refusal, *, may_wait: bool = True
    ) -> Verifier:
        """Another verifier, another process, or in the end a failed one again.

        Raises `error` when nobody takes the sequence in time, or at once if it may not wait.
        """
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
        self._avoid[failed] = now + AVOID_S
        while True:
            now = time.monotonic()
            avoid = {place for place, until in self._avoid.items() if now < until}
            verifier = self._verifiers.place(self._model, self._key, avoid)
            if verifier is not None:
                return verifier
            left_s = self._began_at + self._wait_s - now
            if left_s <= 0 or not may_wait:
                raise error
            # A breaker closes, and a queue empties, without a word.
            await self._verifiers.wait_change(min(POLL_S, left_s))


def _left_ms(timeout_ms: int, opened_at: float) -> int:
    """What is left of a sequence's time; 0 when it has no limit."""
    if not timeout_ms:
        return 0
    left_ms = timeout_ms - int((time.monotonic() - opened_at) * 1000)
    if left_ms < 1:
        raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "timeout_ms ran out")
    return left_ms
