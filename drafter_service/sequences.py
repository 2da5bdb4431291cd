"""The sequences of all streams: what updates do to them, and room for no more than so many.

Runs on the drafting thread, which owns all of it. Knows no thread, message or clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import SpanContext

from drafter_service.counters import DraftCounters
from drafter_service.drafter import Drafter, NoRoomError
from drafter_service.state import DraftState, open_state
from drafter_service.updates import Attach, Block, Commit, Limits, Lost, LostReason, Updates

Deliver = Callable[[Sequence[Block], Sequence[Lost]], None]


@dataclass(slots=True, eq=False)
class Tracked:
    """A sequence's state, and the time that its next block took so far."""

    state: DraftState
    span: SpanContext | None
    started_unix_nanos: int = 0
    drafting_nanos: int = 0


@dataclass(slots=True, eq=False)
class Stream:
    """One verifier: its sequences by its own numbers, and what it has yet to be told.

    `deliver` is called on the drafting thread.
    """

    limits: Limits
    deliver: Deliver
    sequences: dict[int, Tracked] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)


class Sequences:
    """All streams' sequences, and the drafter's side of each kept in step."""

    def __init__(self, drafter: Drafter, max_sequences: int) -> None:
        self._drafter = drafter
        self._max_sequences = max_sequences
        self.counters = DraftCounters()
        self.streams: dict[Stream, None] = {}
        self.count = 0

    def wanting(self) -> list[Tracked]:
        """The sequences that draft tokens are wanted for."""
        return [
            tracked
            for stream in self.streams
            for tracked in stream.sequences.values()
            if tracked.state.num_wanted
        ]

    def has_work(self) -> bool:
        """Whether there is anything to draft or to tell."""
        return bool(self.wanting()) or any(stream.lost for stream in self.streams)

    def apply(self, stream: Stream, updates: Updates) -> None:
        """Detaches, then attaches, then commits. What cannot be followed ends in `stream.lost`."""
        self.streams[stream] = None
        for detach in updates.detaches:
            tracked = stream.sequences.get(detach.sequence)
            if tracked and detach.finished:
                self.counters.waste(tracked.state.num_drafted)
                tracked.state.finish(detach.token_ids)
            self._detach(stream, detach.sequence)
        for attach in updates.attaches:
            self._attach(stream, attach)
        for commit in updates.commits:
            self._commit(stream, commit)

    def forget(self, stream: Stream) -> None:
        """Frees a stream and all of its sequences."""
        for number in list(stream.sequences):
            self._detach(stream, number)
        self.streams.pop(stream, None)

    def lose_all(self) -> None:
        """Gives every sequence up; their verifiers may attach them again."""
        for stream in self.streams:
            for number, tracked in list(stream.sequences.items()):
                stream.lost.append(Lost(number, tracked.state.epoch, LostReason.UNSPECIFIED))
                self._detach(stream, number)

    def _attach(self, stream: Stream, event: Attach) -> None:
        known = stream.sequences.get(event.sequence)
        if known:
            self._detach(stream, event.sequence)
            if event.epoch <= known.state.epoch:
                _lose(stream, event, LostReason.OUT_OF_STEP)
                return
        state = open_state(event, stream.limits)
        if isinstance(state, Lost):
            stream.lost.append(state)
            return
        try:
            if self.count >= self._max_sequences:
                raise NoRoomError
            self._drafter.attach(state)
        except NoRoomError:
            _lose(stream, event, LostReason.CAPACITY)
            return
        stream.sequences[event.sequence] = Tracked(state, event.span)
        self.count += 1

    def _commit(self, stream: Stream, event: Commit) -> None:
        tracked = stream.sequences.get(event.sequence)
        if not tracked:
            # The verifier may have raised the epoch before it heard that the sequence was lost:
            # told again under the new epoch, it cannot take the news for stale.
            _lose(stream, event, LostReason.OUT_OF_STEP)
            return
        length = len(tracked.state.token_ids)
        kept = tracked.state.commit(event)
        if isinstance(kept, Lost):
            self._detach(stream, event.sequence)
            stream.lost.append(kept)
            return
        self.counters.waste(length - kept)
        self._drafter.rollback(tracked.state, kept)
        if not tracked.state.num_drafted:
            tracked.drafting_nanos = 0

    def _detach(self, stream: Stream, number: int) -> None:
        tracked = stream.sequences.pop(number, None)
        if tracked:
            self.count -= 1
            self.counters.waste(tracked.state.num_drafted)
            self._drafter.detach(tracked.state)


def _lose(stream: Stream, event: Attach | Commit, reason: LostReason) -> None:
    stream.lost.append(Lost(event.sequence, event.epoch, reason))
