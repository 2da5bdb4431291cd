"""The heartbeat of one verifier: from its answers to the question how it does, whether it moves.

Pure; the clock is passed in. Knows no messages.
"""

from collections.abc import Callable

from gateway.sequences import VerifierStatus

# Asked INTERVAL_S after the last answer, with ANSWER_S for the next; two missed ones are a frozen
# process: noticed in 2.2 s at most. Counted, not timed: a gateway that was itself stopped for a
# while must not blame its verifiers.
INTERVAL_S = 0.3
ANSWER_S = 0.8
MAX_MISSED = 2


class Heartbeat:
    """What the last answers say."""

    def __init__(self, stall_s: float, clock: Callable[[], float]) -> None:
        """A verifier with work whose steps do not count up for `stall_s` is stuck."""
        self._stall_s = stall_s
        self._clock = clock
        self._num_missed = 0
        self._num_steps = -1
        self._moved_at = clock()

    @property
    def is_frozen(self) -> bool:
        """No answer, or no progress."""
        return self._num_missed >= MAX_MISSED or self._clock() - self._moved_at > self._stall_s

    def answered(self, status: VerifierStatus) -> None:
        self._num_missed = 0
        has_work = status.num_running + status.num_waiting > 0
        if status.num_steps != self._num_steps or not has_work:
            self.moved()
        self._num_steps = status.num_steps

    def missed(self) -> None:
        self._num_missed += 1
        # Whether the model moves is not known meanwhile.
        self.moved()

    def moved(self) -> None:
        """It gave a sign of progress, such as tokens."""
        self._moved_at = self._clock()
