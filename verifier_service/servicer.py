"""VerifierService on the wire: messages in, events out. Decides nothing about tokens."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
from opentelemetry.sdk.trace import TracerProvider

from paceline import telemetry
from paceline.codec import (
    params_from_pb,
    prefill_to_pb,
    round_to_pb,
    speculation_from_pb,
    totals_to_pb,
)
from paceline.limits import label_violations, prompt_violations, timeout_violations
from paceline.model.engine import LanguageModel
from paceline.params import Speculation, Violation, violations
from paceline.server import Refusal, Refusals
from paceline.v1 import tokens_pb2, verifier_pb2_grpc
from paceline.v1 import verifier_pb2 as pb
from verifier_service.config import VerifierSettings
from verifier_service.drafters import DrafterPool
from verifier_service.engine import Engine, QueueFull
from verifier_service.sequence import (
    Event,
    FailedEvent,
    FinalEvent,
    Request,
    TokensEvent,
    VerifierSequence,
)
from verifier_service.spans import VerifySpans

_OPEN_DEADLINE_S = 10.0
_TOKENIZER_PIECE = 1 << 20
_CODES = {
    "deadline": grpc.StatusCode.DEADLINE_EXCEEDED,
    "nothing_left": grpc.StatusCode.FAILED_PRECONDITION,
    "not_finite": grpc.StatusCode.INTERNAL,
    "internal": grpc.StatusCode.INTERNAL,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
}

Context = grpc.aio.ServicerContext[Any, Any]


class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Every Generate stream is one sequence of the engine."""

    def __init__(
        self,
        engine: Engine,
        pool: DrafterPool,
        settings: VerifierSettings,
        tokenizer_files: Mapping[str, bytes],
        provider: TracerProvider,
        is_draining: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._pool = pool
        self._settings = settings
        self._tokenizer_files = tokenizer_files
        self._is_draining = is_draining
        self._spans = VerifySpans(provider)
        self.num_live = 0

    @property
    def _model(self) -> LanguageModel:
        return self._engine.model

    async def Generate(
        self, request_iterator: AsyncIterator[pb.VerifierGenerateRequest], context: Context
    ) -> AsyncIterator[pb.VerifierGenerateResponse]:
        async with Refusals(context):
            if self._is_draining():
                raise Refusal(grpc.StatusCode.UNAVAILABLE, "the verifier is draining")
            events: asyncio.Queue[Event | pb.VerifierGenerateRequest | None] = asyncio.Queue()
            reader = asyncio.create_task(_read(request_iterator, events))
            sequence = None
            self.num_live += 1
            try:
                request = self._request(await _first_message(events))
                spans = self._spans.of(request.trace)
                try:
                    sequence = self._engine.submit(request, events.put_nowait)
                except QueueFull as error:
                    raise Refusal(
                        grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), retry_after_s=1.0
                    ) from None
                while (event := await events.get()) is not None:
                    if isinstance(event, pb.VerifierGenerateRequest):
                        if self._is_end(sequence, event):
                            return
                    elif isinstance(event, FailedEvent):
                        raise Refusal(_CODES[event.kind], event.message)
                    elif isinstance(event, TokensEvent):
                        spans.record(event.round)
                        yield _tokens_to_pb(event)
                    else:
                        yield _final_to_pb(event, request)
                        return
            finally:
                self.num_live -= 1
                reader.cancel()
                if sequence is not None:
                    self._engine.cancel(sequence)

    def _is_end(self, sequence: VerifierSequence, message: pb.VerifierGenerateRequest) -> bool:
        if message.HasField("credit"):
            self._engine.add_credit(sequence, message.credit.num_tokens)
            return False
        if message.HasField("end"):
            return True
        raise Refusal.invalid([Violation("request", "only credit and end may follow open")])

    def _request(self, message: pb.Open) -> Request:
        """The checked request. Raises Refusal, before any work."""
        params = params_from_pb(message.params)
        prompt, generated = list(message.token_ids), list(message.generated_token_ids)
        found = [
            *label_violations("request_id", message.request_id),
            *label_violations("workload", message.workload),
            *label_violations("tenant", message.tenant),
            *timeout_violations("timeout_ms", message.timeout_ms),
            *prompt_violations("token_ids", len(prompt)),
        ]
        if found:
            raise Refusal.invalid(found)
        found = violations(
            params,
            prompt,
            generated,
            vocab_size=self._model.vocab_size,
            max_context=self._model.max_context,
        )
        speculation = speculation_from_pb(message.draft)
        if self._settings.speculation == "off":
            speculation = Speculation.OFF
        if found:
            raise Refusal.invalid(found)
        limit = self._settings.max_draft_tokens
        most = self._settings.max_rows - 1
        asked = message.draft.max_draft_tokens
        is_off = speculation is Speculation.OFF
        return Request(
            prompt=prompt,
            generated=generated,
            params=params,
            seed=message.seed,
            speculation=speculation,
            max_draft_tokens=0 if is_off else min(asked or limit, limit),
            max_tree_tokens=0 if is_off else min(asked or most, most),
            keep=not message.draft.forget,
            timeout_s=message.timeout_ms / 1e3 if message.timeout_ms else None,
            trace=telemetry.parse_context(message.trace.traceparent, message.trace.tracestate),
            workload=message.workload,
            tenant=message.tenant,
            num_rounds=message.num_rounds,
        )

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        model = self._model
        return pb.GetModelResponse(
            name=model.name,
            model_fingerprint=model.model_fingerprint,
            tokenizer_fingerprint=model.tokenizer_fingerprint,
            vocab_size=model.vocab_size,
            max_context=model.max_context,
            eos_token_ids=sorted(model.eos_token_ids),
            max_draft_tokens=self._settings.max_draft_tokens,
            numerics=model.numerics,
        )

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[pb.GetTokenizerResponse]:
        for name, data in self._tokenizer_files.items():
            for start in range(0, max(len(data), 1), _TOKENIZER_PIECE):
                piece = data[start : start + _TOKENIZER_PIECE]
                yield pb.GetTokenizerResponse(file=name, data=piece)

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: Context
    ) -> pb.GetStatusResponse:
        status = self._engine.status()
        return pb.GetStatusResponse(
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            kv_blocks_used=status.kv_blocks_used,
            kv_blocks_total=status.kv_blocks_total,
            step_us=status.step_us,
            forward_us=status.forward_us,
            kv_blocks_reusable=status.kv_blocks_reusable,
            num_preemptions=status.num_preemptions,
            num_steps=status.num_steps,
            totals=totals_to_pb(status.totals),
            drafters=[
                pb.DrafterStatus(
                    address=link.address,
                    state=link.state,
                    drafter=link.drafter,
                    detail=link.detail,
                    num_sequences=self._engine.sequences_on(link.number),
                    num_blocks=link.num_blocks,
                    num_stale=link.num_stale,
                    num_malformed=link.num_malformed,
                    num_connects=link.num_connects,
                )
                for link in self._pool.links
            ],
            tenants=[
                pb.TenantDrafting(tenant=tenant, **dataclasses.asdict(drafting))
                for tenant, drafting in self._engine.tenants.drafting.copy().items()
            ],
        )


async def _read(
    messages: AsyncIterator[pb.VerifierGenerateRequest],
    events: "asyncio.Queue[Event | pb.VerifierGenerateRequest | None]",
) -> None:
    """The one reader of a stream; None is its end, said or not."""
    try:
        async for message in messages:
            events.put_nowait(message)
    finally:
        events.put_nowait(None)


async def _first_message(
    events: "asyncio.Queue[Event | pb.VerifierGenerateRequest | None]",
) -> pb.Open:
    try:
        message = await asyncio.wait_for(events.get(), _OPEN_DEADLINE_S)
    except TimeoutError:
        raise Refusal(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"no open within {_OPEN_DEADLINE_S:.0f} s"
        ) from None
    if not isinstance(message, pb.VerifierGenerateRequest) or not message.HasField("open"):
        raise Refusal.invalid([Violation("open", "must be the first message")])
    return message.open


def _tokens_to_pb(event: TokensEvent) -> pb.VerifierGenerateResponse:
    return pb.VerifierGenerateResponse(
        tokens=pb.Tokens(
            start_index=event.start_index,
            token_ids=event.token_ids,
            sources=[int(source) for source in event.sources],  # type: ignore[misc]
            logprobs=[
                tokens_pb2.TokenLogprobs(
                    logprob=entry.logprob,
                    top_token_ids=entry.top_token_ids,
                    top_logprobs=entry.top_logprobs,
                )
                for entry in event.logprobs
            ],
            round=round_to_pb(event.round),
            prefill=prefill_to_pb(event.prefill) if event.prefill else None,
        )
    )


def _final_to_pb(event: FinalEvent, request: Request) -> pb.VerifierGenerateResponse:
    return pb.VerifierGenerateResponse(
        final=pb.Final(
            finish_reason=int(event.finish_reason),  # type: ignore[arg-type]
            stop_token_id=event.stop_token_id,
            usage=tokens_pb2.Usage(
                num_prompt_tokens=len(request.prompt),
                num_cached_tokens=event.num_cached_tokens,
                num_completion_tokens=event.num_output_tokens,
            ),
            totals=totals_to_pb(event.totals),
            digest=event.digest,
        )
    )
