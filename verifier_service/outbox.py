"""The outbox: what a step has for the outside, handed out when the step says so.

Updates for drafters gather in the links and events for clients here. Used on the engine's thread.
"""

from collections.abc import Callable

from verifier_service.links import DraftLinks, Update
from verifier_service.sequence import Event, Sink, VerifierSequence


class Outbox:
    """`deliver` takes events, `send_updates` what each link's drafter is to be told."""

    def __init__(
        self,
        links: DraftLinks,
        deliver: Callable[[list[tuple[Sink, Event]]], None],
        send_updates: Callable[[dict[int, list[Update]]], None],
    ) -> None:
        self._links = links
        self._deliver = deliver
        self._send_updates = send_updates
        self._events: list[tuple[Sink, Event]] = []

    def emit(self, sequence: VerifierSequence, event: Event) -> None:
        """Nothing for a sequence that was cancelled."""
        if not sequence.cancelled:
            self._events.append((sequence.sink, event))

    def flush(self) -> None:
        """Updates first: a drafter's time is worth more."""
        updates = self._links.take_updates()
        if updates:
            self._send_updates(updates)
        if self._events:
            events, self._events = self._events, []
            self._deliver(events)
