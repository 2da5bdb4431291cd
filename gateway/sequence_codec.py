"""Messages of VerifierService <-> values."""

from typing import Any

from gateway.sequences import Final, Open, ServedModel, Tokens, VerifierStatus
from paceline.codec import (
    params_to_pb,
    prefill_from_pb,
    round_from_pb,
    sources_from_pb,
)
from paceline.events import TokenLogprobs
from paceline.rounds import FinishReason
from paceline.v1 import drafter_pb2, tokens_pb2, verifier_pb2


def open_to_pb(opening: Open) -> verifier_pb2.VerifierGenerateRequest:
    speculation: Any = int(opening.draft.speculation)
    return verifier_pb2.VerifierGenerateRequest(
        open=verifier_pb2.Open(
            token_ids=opening.token_ids,
            generated_token_ids=opening.generated_token_ids,
            params=params_to_pb(opening.params),
            seed=opening.seed,
            timeout_ms=opening.timeout_ms,
            draft=tokens_pb2.DraftPolicy(
                speculation=speculation,
                max_draft_tokens=opening.draft.max_draft_tokens,
                forget=opening.draft.forget,
            ),
            trace=tokens_pb2.TraceContext(
                traceparent=opening.traceparent, tracestate=opening.tracestate
            ),
            request_id=opening.request_id,
            workload=opening.workload,
            tenant=opening.tenant,
            num_rounds=opening.num_rounds,
        )
    )


def end_to_pb() -> verifier_pb2.VerifierGenerateRequest:
    return verifier_pb2.VerifierGenerateRequest(end=drafter_pb2.EndOfStream())


def tokens_from_pb(message: verifier_pb2.Tokens) -> Tokens:
    return Tokens(
        start_index=message.start_index,
        token_ids=tuple(message.token_ids),
        sources=sources_from_pb(message.sources, len(message.token_ids)),
        logprobs=[
            TokenLogprobs(token.logprob, tuple(token.top_token_ids), tuple(token.top_logprobs))
            for token in message.logprobs
        ],
        round=round_from_pb(message.round) if message.HasField("round") else None,
        prefill=prefill_from_pb(message.prefill) if message.HasField("prefill") else None,
    )


def final_from_pb(message: verifier_pb2.Final) -> Final:
    return Final(
        finish_reason=FinishReason(int(message.finish_reason)),
        digest=message.digest,
    )


def model_from_pb(message: verifier_pb2.GetModelResponse) -> ServedModel:
    return ServedModel(
        name=message.name,
        model_fingerprint=message.model_fingerprint,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        vocab_size=message.vocab_size,
        max_context=message.max_context,
        eos_token_ids=frozenset(message.eos_token_ids),
        max_draft_tokens=message.max_draft_tokens,
        numerics=message.numerics,
    )


def status_from_pb(message: verifier_pb2.GetStatusResponse) -> VerifierStatus:
    return VerifierStatus(
        num_running=message.num_running,
        num_waiting=message.num_waiting,
        num_steps=message.num_steps,
    )
