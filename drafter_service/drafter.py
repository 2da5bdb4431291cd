"""What a drafter is: the one interface that the engine drives. Knows no model and no stream."""

from collections.abc import Sequence
from typing import Protocol

from drafter_service.state import DraftState
from drafter_service.updates import Distribution
from paceline.rounds import TokenSource

NO_LIMIT = 2**31 - 1


class NoRoomError(Exception):
    """A drafter has no room for another sequence."""


class Drafter(Protocol):
    """Proposes tokens. Called by one thread only, one call at a time.

    What it keeps per sequence follows `state.token_ids`, which it reads and never writes; it may
    lag behind and catch up in `extend`.
    """

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> TokenSource:
        """What its tokens are counted as."""

    @property
    def tokenizer_fingerprint(self) -> str:
        """Empty when it works on ids alone."""

    @property
    def vocab_size(self) -> int:
        """Ids it can follow; 0 for any."""

    @property
    def max_context(self) -> int:
        """The longest sequence it can follow; 0 for any."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def attach(self, state: DraftState) -> None:
        """Makes room for a sequence. Raises NoRoomError when there is none."""

    def rollback(self, state: DraftState, length: int) -> None:
        """Only the first `length` of the tokens it saw still stand."""

    def detach(self, state: DraftState) -> None:
        """Frees what it keeps for a sequence. The answer may be kept if it `is_finished`."""

    def extend(self, states: Sequence[DraftState]) -> list[list[int] | None]:
        """For each sequence the next draft tokens, at most `num_wanted` and at least one; an empty
        list when it needs another call for them, None when it has nothing until the next commit.
        """

    def distributions(self, state: DraftState, start: int, end: int) -> Sequence[Distribution]:
        """What the draft tokens at positions `start` to `end` were sampled from; none when they
        were not sampled, or when the request does not want to know."""
