"""The circuit breaker of one verifier: after repeated failures it gets nothing but a probe.

Pure; the clock is passed in. Knows no verifier.
"""

from collections import deque
from collections.abc import Callable

MAX_FAILURES = 5
WINDOW_S = 60.0
FIRST_OPEN_S = 1.0
LAST_OPEN_S = 30.0


class Breaker:
    """Closed, open for 1 to 30 s, or half-open: one probe at a time, whose outcome decides."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._is_closed = True
        self._open_s = 0.0
        self._open_until = 0.0
        self._is_probing = False

    @property
    def allows(self) -> bool:
        """Whether a sequence may begin now."""
        return self._is_closed or (not self._is_probing and self._clock() >= self._open_until)

    def begin(self) -> None:
        """A sequence begins; behind an open breaker it is the probe."""
        self._is_probing = not self._is_closed

    def succeed(self) -> None:
        """A sequence got its first tokens. Closes the breaker."""
        if not self._is_closed:
            self._failures.clear()
        self._is_closed = True
        self._is_probing = False
        self._open_s = 0.0

    def fail(self) -> None:
        """The verifier failed. Opens the breaker if it did so too often, or was on probation."""
        now = self._clock()
        self._failures.append(now)
        often = len(self._failures) == MAX_FAILURES and now - self._failures[0] <= WINDOW_S
        if often or not self._is_closed:
            self._is_closed = False
            self._is_probing = False
            self._open_s = min(2 * self._open_s or FIRST_OPEN_S, LAST_OPEN_S)
            self._open_until = now + self._open_s

    def give_up(self) -> None:
        """A sequence ended without telling anything of the verifier."""
        self._is_probing = False
