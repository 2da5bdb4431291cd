"""GatewayService on the wire: checks, admission, and messages in and out."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc

from gateway.admission import Admission, draining_refusal
from gateway.answers import Answers, Arrival
from gateway.codec import (
    answer_record_to_pb,
    defaults_from_pb,
    event_to_pb,
    model_to_pb,
    request_from_pb,
    seen_to_pb,
    session_to_pb,
    turn_from_pb,
)
from gateway.recent import RecentAnswers
from gateway.rounds import RoundHub
from gateway.sessions import Defaults, Session, Sessions, add_turn
from gateway.validation import opening_violations, request_violations, turn_violations
from gateway.verifiers import Verifiers
from paceline import telemetry
from paceline.events import Delta, Finished
from paceline.params import FieldError, Violation
from paceline.server import Refusal, refusals
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import gateway_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

FIRST_MESSAGE_S = 10.0


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """The door for internal callers."""

    def __init__(
        self,
        answers: Answers,
        sessions: Sessions,
        verifiers: Verifiers,
        hub: RoundHub,
        admission: Admission,
        recent: RecentAnswers,
    ) -> None:
        self._answers = answers
        self._sessions = sessions
        self._verifiers = verifiers
        self._hub = hub
        self._admission = admission
        self._recent = recent

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        async with refusals(context):
            arrival = _arrival(context)
            wanted = request_from_pb(request)
            _refuse(request_violations(wanted))
            with self._admission.place(wanted.n):
                events = self._answers.stream_all(wanted, arrival)
                async with contextlib.aclosing(events):
                    async for index, event in events:
                        await context.write(pb.GenerateResponse(index=index, **event_to_pb(event)))

    async def Chat(self, requests: Any, context: Context) -> None:
        async with refusals(context):
            first = await self._next(context, FIRST_MESSAGE_S)
            if first is None:
                return
            session = self._open(first)
            await context.write(pb.ChatResponse(session=self._session_to_pb(session)))
            while (message := await self._next(context)) is not None:
                match message.WhichOneof("request"):
                    case "turn":
                        await self._turn(message.turn, session.id, context)
                    case "end":
                        return
                    case "open":
                        raise FieldError("open", "must be the first message and no other")
                    case _:
                        raise FieldError("request", "one of turn or end is required")

    async def GetSession(
        self, request: pb.GetSessionRequest, context: Context
    ) -> pb.GetSessionResponse:
        async with refusals(context):
            session = self._sessions.get(request.session_id)
            return pb.GetSessionResponse(session=self._session_to_pb(session))

    async def CloseSession(
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionResponse:
        async with refusals(context):
            self._sessions.close(request.session_id)
            return pb.CloseSessionResponse()

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        async with refusals(context):
            return pb.ListModelsResponse(models=map(model_to_pb, self._verifiers.models()))

    async def WatchRounds(self, request: pb.WatchRoundsRequest, context: Context) -> None:
        async with refusals(context):
            with self._hub.watch(request.id) as watcher:
                if watcher is None:
                    raise Refusal(grpc.StatusCode.NOT_FOUND, "no such request is running")
                # Tells the caller that no round is missed from here on.
                await context.send_initial_metadata(())
                while (seen := await watcher.next()) is not None:
                    await context.write(seen_to_pb(seen))
            if not request.id:
                raise draining_refusal()

    async def GetTrace(self, request: pb.GetTraceRequest, context: Context) -> pb.GetTraceResponse:
        async with refusals(context):
            record = self._recent.get(request.id)
            if record is None:
                raise Refusal(grpc.StatusCode.NOT_FOUND, "no such answer is remembered")
            return answer_record_to_pb(record)

    def _open(self, message: pb.ChatRequest) -> Session:
        if message.WhichOneof("request") != "open":
            raise FieldError("open", "must be the first message")
        opening = message.open
        _refuse(
            opening_violations(opening.session_id, opening.system, opening.stop, opening.workload)
        )
        if opening.session_id:
            session = self._sessions.resume(opening.session_id)
            session.defaults = defaults_from_pb(opening, session.defaults)
            return session
        defaults = defaults_from_pb(opening, Defaults())
        _, model, _ = self._verifiers.place("")
        return self._sessions.create(model.name, opening.system, defaults)

    async def _turn(self, turn: pb.Turn, session_id: str, context: Context) -> None:
        arrival = _arrival(context)
        _refuse(turn_violations(turn.content, turn.request_id))
        with self._admission.place(), self._sessions.turn(session_id) as session:
            wanted = turn_from_pb(turn, session)
            texts: list[str] = []
            events = self._answers.stream(
                wanted, arrival, session_id=session_id, drop_old_turns=True
            )
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, Delta):
                        texts.append(event.text)
                    elif isinstance(event, Finished):
                        num_tokens = event.num_prompt_tokens + event.num_completion_tokens
                        add_turn(session, turn.content, "".join(texts), num_tokens)
                    await context.write(pb.ChatResponse(**event_to_pb(event)))

    async def _next(self, context: Context, timeout_s: float | None = None) -> Any:
        """The client's next message; None when it has closed its side or is gone.

        Raises UNAVAILABLE when the gateway drains, DEADLINE_EXCEEDED after `timeout_s`.
        """
        read = asyncio.ensure_future(context.read())
        draining = asyncio.ensure_future(self._admission.draining.wait())
        try:
            await asyncio.wait(
                {read, draining}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if read.done():
                message = read.result()
                return None if message is grpc.aio.EOF else message
            if draining.done():
                raise draining_refusal()
            raise Refusal(
                grpc.StatusCode.DEADLINE_EXCEEDED, f"no message came within {timeout_s:g} s"
            )
        finally:
            # Only a stream that ends here leaves a read behind.
            read.cancel()
            draining.cancel()

    def _session_to_pb(self, session: Session) -> pb.Session:
        return session_to_pb(session, self._sessions.expires_in_s(session))


def _refuse(violations: Sequence[Violation]) -> None:
    if violations:
        raise Refusal.invalid(violations)


def _arrival(context: Context) -> Arrival:
    metadata = dict(context.invocation_metadata() or ())
    return Arrival(
        unix_nanos=time.time_ns(),
        monotonic_s=time.monotonic(),
        remaining_s=context.time_remaining(),
        parent=telemetry.parse_context(
            str(metadata.get("traceparent", "")), str(metadata.get("tracestate", ""))
        ),
    )
