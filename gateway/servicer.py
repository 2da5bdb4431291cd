"""GatewayService on the wire: checks, admission, and messages in and out."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc

from gateway.admission import Admission, draining_refusal
from gateway.answers import Arrival
from gateway.codec import (
    answer_record_to_pb,
    defaults_from_pb,
    event_to_pb,
    model_to_pb,
    padded,
    request_from_pb,
    seen_to_pb,
    session_to_pb,
    turn_from_pb,
)
from gateway.door import Door
from gateway.keys import Keys, Tenant
from gateway.recent import RecentAnswers
from gateway.rounds import RoundHub
from gateway.sessions import Defaults, Session, Sessions, add_turn, not_found, refuse_if_full
from gateway.validation import opening_violations, turn_violations
from gateway.verifiers import Verifiers
from paceline import telemetry
from paceline.events import Delta, Finished
from paceline.params import FieldError, Violation
from paceline.server import Refusal, Refusals
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import gateway_pb2_grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

FIRST_MESSAGE_S = 10.0


class GatewayServicer(gateway_pb2_grpc.GatewayServiceServicer):
    """The door for internal callers."""

    def __init__(
        self,
        door: Door,
        sessions: Sessions,
        verifiers: Verifiers,
        hub: RoundHub,
        admission: Admission,
        keys: Keys,
        recent: RecentAnswers,
        *,
        drop_old_turns: bool,
        pad_frames: int,
    ) -> None:
        """`drop_old_turns`: else a turn that no longer fits with its history is refused.

        `pad_frames`: answers come in messages of a multiple of so many bytes; 0 is off.
        """
        self._door = door
        self._sessions = sessions
        self._verifiers = verifiers
        self._hub = hub
        self._admission = admission
        self._keys = keys
        self._drop_old_turns = drop_old_turns
        self._pad_frames = pad_frames
        self._recent = recent

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        async with Refusals(context):
            arrival = _arrival(context, self._tenant(context))
            events = self._door.answers(request_from_pb(request), arrival)
            async with contextlib.aclosing(events):
                async for index, event in events:
                    response = pb.GenerateResponse(index=index, **event_to_pb(event))
                    await context.write(padded(response, self._pad_frames))

    async def Chat(self, requests: Any, context: Context) -> None:
        async with Refusals(context):
            # Read before anything is refused: a client that writes to a call that has ended may
            # find INTERNAL in the place of why it ended.
            first = await self._next(context, FIRST_MESSAGE_S)
            if first is None:
                return
            tenant = self._tenant(context)
            session = await self._open(first, tenant)
            await context.write(pb.ChatResponse(session=self._session_to_pb(session)))
            while (message := await self._next(context)) is not None:
                match message.WhichOneof("request"):
                    case "turn":
                        await self._turn(message.turn, session.id, tenant, context)
                    case "end":
                        return
                    case "open":
                        raise FieldError("open", "must be the first message and no other")
                    case _:
                        raise FieldError("request", "one of turn or end is required")

    async def GetSession(
        self, request: pb.GetSessionRequest, context: Context
    ) -> pb.GetSessionResponse:
        async with Refusals(context):
            session = await self._owned(request.session_id, self._tenant(context))
            return pb.GetSessionResponse(session=self._session_to_pb(session))

    async def CloseSession(
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionResponse:
        async with Refusals(context):
            session = await self._owned(request.session_id, self._tenant(context))
            await self._sessions.close(session.id)
            return pb.CloseSessionResponse()

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        async with Refusals(context):
            self._tenant(context)
            return pb.ListModelsResponse(models=map(model_to_pb, self._verifiers.models()))

    async def WatchRounds(self, request: pb.WatchRoundsRequest, context: Context) -> None:
        async with Refusals(context):
            tenant = self._tenant(context)
            if not request.id and not tenant.is_operator:
                raise Refusal(
                    grpc.StatusCode.PERMISSION_DENIED, "name a request: this key is no operator's"
                )
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
        async with Refusals(context):
            tenant = self._tenant(context)
            record = self._recent.get(request.id, None if tenant.is_operator else tenant.name)
            if record is None:
                raise Refusal(grpc.StatusCode.NOT_FOUND, "no such answer is remembered")
            return answer_record_to_pb(record)

    async def _open(self, message: pb.ChatRequest, tenant: Tenant) -> Session:
        if message.WhichOneof("request") != "open":
            raise FieldError("open", "must be the first message")
        opening = message.open
        _refuse(
            opening_violations(opening.session_id, opening.system, opening.stop, opening.workload)
        )
        if opening.session_id:
            known = await self._owned(opening.session_id, tenant)
            return await self._sessions.resume(known.id, defaults_from_pb(opening, known.defaults))
        defaults = defaults_from_pb(opening, Defaults())
        model, _ = self._verifiers.serving("")
        return await self._sessions.create(model.name, opening.system, defaults, tenant.name)

    async def _owned(self, session_id: str, tenant: Tenant) -> Session:
        """Raises NOT_FOUND, for another tenant's session as for none."""
        session = await self._sessions.get(session_id)
        if session.tenant != tenant.name:
            raise not_found()
        return session

    def _tenant(self, context: Context) -> Tenant:
        """Whom the call is for. Raises UNAUTHENTICATED."""
        return self._keys.identify(_metadata(context))

    async def _turn(self, turn: pb.Turn, session_id: str, tenant: Tenant, context: Context) -> None:
        arrival = _arrival(context, tenant, session_id)
        _refuse(turn_violations(turn.content, turn.request_id, turn.timeout_ms))
        async with self._sessions.turn(session_id) as session:
            await self._answer_turn(turn, session, arrival, context)

    async def _answer_turn(
        self, turn: pb.Turn, session: Session, arrival: Arrival, context: Context
    ) -> None:
        if not self._drop_old_turns:
            refuse_if_full(session, turn.content)
        texts: list[str] = []
        events = self._door.turn(
            turn_from_pb(turn, session), arrival, drop_old_turns=self._drop_old_turns
        )
        async with contextlib.aclosing(events):
            async for event in events:
                if isinstance(event, Delta):
                    texts.append(event.text)
                elif isinstance(event, Finished):
                    num_tokens = event.num_prompt_tokens + event.num_completion_tokens
                    add_turn(session, turn.content, "".join(texts), num_tokens)
                    # Before the client is told: what it is told of is kept.
                    await self._sessions.save(session)
                response = pb.ChatResponse(**event_to_pb(event))
                await context.write(padded(response, self._pad_frames))

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


def _metadata(context: Context) -> dict[str, str]:
    """The call's textual metadata; gRPC keeps names in lower case."""
    pairs = context.invocation_metadata() or ()
    return {name: value for name, value in pairs if isinstance(value, str)}


def _arrival(context: Context, tenant: Tenant, session_id: str = "") -> Arrival:
    metadata = _metadata(context)
    return Arrival(
        unix_nanos=time.time_ns(),
        monotonic_s=time.monotonic(),
        tenant=tenant,
        remaining_s=context.time_remaining(),
        parent=telemetry.parse_context(
            metadata.get("traceparent", ""), metadata.get("tracestate", "")
        ),
        session_id=session_id,
    )
