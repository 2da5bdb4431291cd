"""Messages of GatewayService <-> values. Judges nothing but the shape of a message."""

from typing import Any, TypeVar

from gateway.padding import field_bytes
from gateway.recent import AnswerRecord
from gateway.rounds import SeenRound
from gateway.sequences import ServedModel
from gateway.sessions import Defaults, Session
from paceline.codec import (
    params_from_pb,
    prefill_to_pb,
    round_to_pb,
    sources_to_pb,
    speculation_from_pb,
    totals_to_pb,
)
from paceline.events import ChatMessage, Delta, DraftPolicy, Event, Finished, Request, Started
from paceline.params import FieldError
from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import tokens_pb2

Streamed = TypeVar("Streamed", pb.GenerateResponse, pb.ChatResponse)


def request_from_pb(message: pb.GenerateRequest) -> Request:
    """Raises FieldError for a message without input or with an enum value that does not exist."""
    return Request(
        prompt=_prompt_from_pb(message),
        params=params_from_pb(message.params),
        stop=tuple(message.stop),
        seed=message.seed if message.HasField("seed") else None,
        draft=_policy_from_pb(message.draft),
        model=message.model,
        request_id=message.request_id,
        workload=message.workload,
        timeout_ms=message.timeout_ms,
        n=message.n or 1,
        generated_token_ids=tuple(message.generated_token_ids),
        model_fingerprint=message.model_fingerprint,
    )


def _prompt_from_pb(message: pb.GenerateRequest) -> Any:
    match message.WhichOneof("input"):
        case "chat":
            if not message.chat.messages:
                raise FieldError("chat.messages", "there are no messages")
            return tuple(ChatMessage(m.role, m.content) for m in message.chat.messages)
        case "text":
            return message.text
        case "token_ids":
            return tuple(message.token_ids.token_ids)
        case _:
            raise FieldError("input", "one of chat, text or token_ids is required")


def _policy_from_pb(message: tokens_pb2.DraftPolicy) -> DraftPolicy:
    return DraftPolicy(speculation_from_pb(message), message.max_draft_tokens, message.forget)


def defaults_from_pb(message: pb.OpenChat, before: Defaults) -> Defaults:
    """What the message sets replaces what was before. Raises FieldError."""
    return Defaults(
        params=params_from_pb(message.params) if message.HasField("params") else before.params,
        stop=tuple(message.stop) or before.stop,
        draft=_policy_from_pb(message.draft) if message.HasField("draft") else before.draft,
        workload=message.workload or before.workload,
    )


def turn_from_pb(message: pb.Turn, session: Session) -> Request:
    """The session's conversation with this turn's question at its end. Raises FieldError."""
    defaults = session.defaults
    return Request(
        prompt=(*session.messages, ChatMessage("user", message.content)),
        params=params_from_pb(message.params) if message.HasField("params") else defaults.params,
        stop=defaults.stop,
        seed=message.seed if message.HasField("seed") else None,
        draft=defaults.draft,
        model=session.model,
        request_id=message.request_id,
        workload=defaults.workload,
        timeout_ms=message.timeout_ms,
    )


def event_to_pb(event: Event) -> dict[str, Any]:
    """The one field of a GenerateResponse or ChatResponse that says this."""
    match event:
        case Started():
            return {"started": _started_to_pb(event)}
        case Delta():
            return {"delta": _delta_to_pb(event)}
        case Finished():
            return {"finished": _finished_to_pb(event)}


def padded(message: Streamed, multiple: int) -> Streamed:
    """The message, brought to a multiple of so many bytes; 0 leaves it as it is."""
    if multiple:
        message.padding = field_bytes(message.ByteSize(), multiple)
    return message


def _started_to_pb(started: Started) -> pb.Started:
    return pb.Started(
        id=started.id,
        model=started.model,
        seed=started.seed,
        num_prompt_tokens=started.num_prompt_tokens,
        trace_id=started.trace_id,
        model_fingerprint=started.model_fingerprint,
    )


def _delta_to_pb(delta: Delta) -> pb.Delta:
    sources: Any = sources_to_pb(delta.sources) if delta.sources else []
    return pb.Delta(
        text=delta.text,
        token_ids=delta.token_ids,
        sources=sources,
        logprobs=[
            tokens_pb2.TokenLogprobs(
                logprob=token.logprob,
                top_token_ids=token.top_token_ids,
                top_logprobs=token.top_logprobs,
            )
            for token in delta.logprobs
        ],
        round=round_to_pb(delta.round) if delta.round else None,
        prefill=prefill_to_pb(delta.prefill) if delta.prefill else None,
    )


def _finished_to_pb(finished: Finished) -> pb.Finished:
    reason: Any = int(finished.finish_reason)
    return pb.Finished(
        finish_reason=reason,
        usage=tokens_pb2.Usage(
            num_prompt_tokens=finished.num_prompt_tokens,
            num_cached_tokens=finished.num_cached_tokens,
            num_completion_tokens=finished.num_completion_tokens,
        ),
        totals=totals_to_pb(finished.totals),
        time_to_first_token_us=finished.time_to_first_token_us,
        duration_us=min(finished.duration_us, 2**32 - 1),
        digest=finished.digest,
        stop=finished.stop,
        num_failovers=finished.num_failovers,
    )


def session_to_pb(session: Session, expires_in_s: float) -> pb.Session:
    return pb.Session(
        session_id=session.id,
        model=session.model,
        num_turns=session.num_turns,
        num_tokens=session.num_tokens,
        expires_in_s=int(expires_in_s),
        messages=[pb.ChatMessage(role=m.role, content=m.content) for m in session.messages],
    )


def model_to_pb(model: ServedModel) -> pb.Model:
    return pb.Model(
        name=model.name,
        model_fingerprint=model.model_fingerprint,
        vocab_size=model.vocab_size,
        max_context=model.max_context,
        max_draft_tokens=model.max_draft_tokens,
        numerics=model.numerics,
    )


def seen_to_pb(seen: SeenRound) -> pb.WatchRoundsResponse:
    return pb.WatchRoundsResponse(
        id=seen.id,
        workload=seen.workload,
        round=round_to_pb(seen.round),
        num_missed=seen.num_missed,
    )


def answer_record_to_pb(record: AnswerRecord) -> pb.GetTraceResponse:
    return pb.GetTraceResponse(
        id=record.id,
        model=record.model,
        workload=record.workload,
        trace_id=record.trace_id,
        start_unix_nanos=record.start_unix_nanos,
        prefill=prefill_to_pb(record.prefill) if record.prefill else None,
        rounds=map(round_to_pb, record.rounds),
        finished=_finished_to_pb(record.finished) if record.finished else None,
        error_type=record.error_type,
    )
