"""The way from any door to an answer: checks, admission, and the answers' events.

Knows no messages and no HTTP; every answer of every door goes through here.
"""

import contextlib
from collections.abc import AsyncGenerator

from gateway.admission import Admission, Visit
from gateway.answers import Answers, Arrival, time_left_ms
from gateway.validation import estimated_tokens, request_violations
from paceline.events import Event, Request
from paceline.server import Refusal


class Door:
    """Takes requests in."""

    def __init__(self, answers: Answers, admission: Admission) -> None:
        self._answers = answers
        self._admission = admission

    async def answers(
        self, request: Request, arrival: Arrival
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """(index, event) of all the request's answers. Close the iterator to give up.

        Raises Refusal or FieldError, before any work if the request itself is at fault.
        """
        if violations := request_violations(request):
            raise Refusal.invalid(violations)
        async with (
            self._place(request, arrival) as visit,
            contextlib.aclosing(self._answers.stream_all(request, arrival)) as events,
        ):
            async for index, event in events:
                visit.count(event)
                yield index, event

    async def turn(
        self, request: Request, arrival: Arrival, *, drop_old_turns: bool
    ) -> AsyncGenerator[Event, None]:
        """Events of the one answer to a session's conversation, `drop_old_turns`: less its oldest
        turns if it is too long. Close the iterator to give up.

        The turn was checked when it came. Raises Refusal or FieldError.
        """
        events = self._answers.stream(request, arrival, drop_old_turns=drop_old_turns)
        async with (
            self._place(request, arrival) as visit,
            contextlib.aclosing(events),
        ):
            async for event in events:
                visit.count(event)
                yield event

    def _place(
        self, request: Request, arrival: Arrival
    ) -> contextlib.AbstractAsyncContextManager[Visit]:
        left_ms = time_left_ms(request.timeout_ms, arrival)
        return self._admission.place(
            arrival.tenant,
            request.n,
            num_tokens=estimated_tokens(request),
            remaining_s=left_ms / 1000 if left_ms else None,
        )
