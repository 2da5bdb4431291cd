"""The way from any door to an answer: checks, admission, and the answers' events.

Knows no messages and no HTTP; every door that takes whole requests goes through here.
"""

import contextlib
from collections.abc import AsyncGenerator

from gateway.admission import Admission
from gateway.answers import Answers, Arrival
from gateway.validation import request_violations
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
        with self._admission.place(request.n):
            async with contextlib.aclosing(self._answers.stream_all(request, arrival)) as events:
                async for indexed in events:
                    yield indexed
