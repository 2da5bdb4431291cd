"""Messages of GatewayService <-> what its callers hold. The only file that knows both."""

from typing import Any

from paceline.codec import (
    params_to_pb,
    prefill_from_pb,
    round_from_pb,
    sources_from_pb,
    totals_from_pb,
)
from paceline.events import (
    AnswerTrace,
    ChatMessage,
    Delta,
    DraftPolicy,
    Event,
    Finished,
    OpenChat,
    Request,
    Session,
    Started,
    TokenLogprobs,
)
from paceline.rounds import FinishReason
from paceline.v1 import gateway_pb2, tokens_pb2


def _policy_to_pb(policy: DraftPolicy) -> tokens_pb2.DraftPolicy:
    speculation: Any = int(policy.speculation)
    return tokens_pb2.DraftPolicy(
        speculation=speculation,
        max_draft_tokens=policy.max_draft_tokens,
        forget=policy.forget,
    )


def request_to_pb(request: Request) -> gateway_pb2.GenerateRequest:
    message = gateway_pb2.GenerateRequest(
        params=params_to_pb(request.params),
        stop=request.stop,
        seed=request.seed,
        draft=_policy_to_pb(request.draft),
        model=request.model,
        request_id=request.request_id,
        workload=request.workload,
        timeout_ms=request.timeout_ms,
        n=request.n,
        generated_token_ids=request.generated_token_ids,
        model_fingerprint=request.model_fingerprint,
    )
    if isinstance(request.prompt, str):
        message.text = request.prompt
    else:
        for part in request.prompt:
            if isinstance(part, ChatMessage):
                message.chat.messages.add(role=part.role, content=part.content)
            else:
                message.token_ids.token_ids.append(part)
    return message


def event_from_pb(response: Any) -> Event:
    """The event of a GenerateResponse or ChatResponse."""
    match response.WhichOneof("response"):
        case "started":
            started = response.started
            return Started(
                id=started.id,
                model=started.model,
                seed=started.seed,
                num_prompt_tokens=started.num_prompt_tokens,
                trace_id=started.trace_id,
                model_fingerprint=started.model_fingerprint,
            )
        case "finished":
            return _finished_from_pb(response.finished)
        case _:
            delta = response.delta
            return Delta(
                text=delta.text,
                token_ids=list(delta.token_ids),
                sources=sources_from_pb(delta.sources, len(delta.token_ids)),
                round=round_from_pb(delta.round) if delta.HasField("round") else None,
                prefill=prefill_from_pb(delta.prefill) if delta.HasField("prefill") else None,
                logprobs=[
                    TokenLogprobs(
                        token.logprob, list(token.top_token_ids), list(token.top_logprobs)
                    )
                    for token in delta.logprobs
                ],
            )


def _finished_from_pb(finished: gateway_pb2.Finished) -> Finished:
    return Finished(
        finish_reason=FinishReason(int(finished.finish_reason)),
        num_prompt_tokens=finished.usage.num_prompt_tokens,
        num_cached_tokens=finished.usage.num_cached_tokens,
        num_completion_tokens=finished.usage.num_completion_tokens,
        totals=totals_from_pb(finished.totals),
        time_to_first_token_us=finished.time_to_first_token_us,
        duration_us=finished.duration_us,
        digest=finished.digest,
        stop=finished.stop,
        num_failovers=finished.num_failovers,
    )


def session_from_pb(session: gateway_pb2.Session) -> Session:
    return Session(
        session_id=session.session_id,
        model=session.model,
        num_turns=session.num_turns,
        num_tokens=session.num_tokens,
        expires_in_s=session.expires_in_s,
        messages=[ChatMessage(message.role, message.content) for message in session.messages],
    )


def opening_to_pb(opening: OpenChat) -> gateway_pb2.OpenChat:
    return gateway_pb2.OpenChat(
        session_id=opening.session_id,
        system=opening.system,
        params=params_to_pb(opening.params),
        stop=opening.stop,
        draft=_policy_to_pb(opening.draft),
        workload=opening.workload,
    )


def answer_trace_from_pb(message: gateway_pb2.GetTraceResponse) -> AnswerTrace:
    return AnswerTrace(
        id=message.id,
        model=message.model,
        workload=message.workload,
        trace_id=message.trace_id,
        start_unix_nanos=message.start_unix_nanos,
        prefill=prefill_from_pb(message.prefill) if message.HasField("prefill") else None,
        rounds=[round_from_pb(report) for report in message.rounds],
        finished=_finished_from_pb(message.finished) if message.HasField("finished") else None,
        error_type=message.error_type,
    )
