"""One answer: from a request, through a verifier's stream, to text, tokens and totals.

Knows no messages and no sessions. All that it counts is what it delivered.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

import grpc
from opentelemetry.trace import SpanContext

from gateway.answer_text import AnswerText, Piece
from gateway.failover import Failover
from gateway.keys import Tenant
from gateway.placement import prefix_key
from gateway.prompts import prompt_ids
from gateway.rounds import RoundHub, cut_round
from gateway.sequences import Final, Open, Seam, ServedModel, Tokens
from gateway.siblings import Numbered, draw_seed, merged, siblings
from gateway.tally import Tally
from gateway.traces import AnswerTrace, Traces
from gateway.verifiers import Verifiers
from paceline.events import Delta, Event, Finished, Request, Started
from paceline.params import FieldError
from paceline.rounds import FinishReason
from paceline.server import Refusal

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Arrival:
    """When and from whom a request came, and the time its caller gives it, if limited.

    Answers of one `session_id` go where the conversation's prefix is; empty is none.
    """

    unix_nanos: int
    monotonic_s: float
    tenant: Tenant
    remaining_s: float | None = None
    parent: SpanContext | None = None
    session_id: str = ""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.monotonic_s


class Answers:
    """Makes answers."""

    def __init__(
        self, verifiers: Verifiers, failover: Failover, traces: Traces, hub: RoundHub
    ) -> None:
        self._verifiers = verifiers
        self._failover = failover
        self._traces = traces
        self._hub = hub

    def stream_all(
        self, request: Request, arrival: Arrival
    ) -> Numbered | AsyncGenerator[tuple[int, Event], None]:
        """(index, event) of all the request's answers as they come, each as `stream` gives it.

        One that fails ends them all, and so does closing the iterator.
        """
        if request.n == 1:
            return Numbered(self.stream(request, arrival))
        return self._stream_several(request, arrival)

    async def _stream_several(
        self, request: Request, arrival: Arrival
    ) -> AsyncGenerator[tuple[int, Event], None]:
        # A long prompt is encoded once for all of them.
        model, text = await self._verifiers.find(request.model)
        prompt = await prompt_ids(text, request.prompt, None)
        request = replace(request, prompt=prompt, model=model.name)
        streams = [self.stream(sibling, arrival) for sibling in siblings(request)]
        async with contextlib.aclosing(merged(streams)) as events:
            async for indexed in events:
                yield indexed

    async def stream(
        self,
        request: Request,
        arrival: Arrival,
        *,
        drop_old_turns: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """`Started`, a `Delta` per round, perhaps one with the text held back, and `Finished`.

        `drop_old_turns` leaves out the oldest turns of a conversation that no longer fits. Close
        the iterator to give up: the verifier stops, too. Raises Refusal or FieldError.
        """
        answer_id = secrets.token_hex(16)
        trace = self._traces.begin(
            request,
            answer_id=answer_id,
            model=self._verifiers.traced_model(request.model),
            session_id=arrival.session_id,
            tenant=arrival.tenant.name,
            parent=arrival.parent,
            start_unix_nanos=arrival.unix_nanos,
        )
        outcome = "CANCELLED"
        try:
            with self._hub.running(answer_id):
                events = self._answer(request, arrival, answer_id, trace, drop_old_turns)
                async with contextlib.aclosing(events):
                    async for event in events:
                        if isinstance(event, Finished):
                            outcome = ""
                        yield event
        except FieldError:
            outcome = grpc.StatusCode.INVALID_ARGUMENT.name
            raise
        except Refusal as refusal:
            outcome = refusal.code.name
            raise
        except Exception:
            outcome = grpc.StatusCode.INTERNAL.name
            raise
        finally:
            trace.end(outcome)

    async def _answer(
        self,
        request: Request,
        arrival: Arrival,
        answer_id: str,
        trace: AnswerTrace,
        drop_old_turns: bool,
    ) -> AsyncGenerator[Event, None]:
        model, text = await self._verifiers.find(request.model)
        if request.model_fingerprint not in ("", model.model_fingerprint):
            raise Refusal(
                grpc.StatusCode.FAILED_PRECONDITION,
                "the model served here is not the one that began the answer",
            )
        max_prompt_tokens = model.max_context - request.params.max_tokens
        prompt = await prompt_ids(
            text, request.prompt, max_prompt_tokens if drop_old_turns else None
        )
        seed = draw_seed() if request.seed is None else request.seed
        trace.set_seed(seed)
        traceparent, tracestate = trace.headers()
        opening = Open(
            token_ids=prompt,
            params=request.params,
            seed=seed,
            draft=request.draft,
            generated_token_ids=request.generated_token_ids,
            timeout_ms=time_left_ms(request.timeout_ms, arrival),
            traceparent=traceparent,
            tracestate=tracestate,
            request_id=request.request_id,
            workload=request.workload,
            tenant=arrival.tenant.name,
        )
        started = Started(
            answer_id, model.name, seed, len(prompt), trace.trace_id, model.model_fingerprint
        )
        answer_text = AnswerText(text.detokeniser(), request.stop, stop_ids(request, model))
        # What the caller has of the answer, it has the text of as well.
        had = request.generated_token_ids
        if any(token_id >= model.vocab_size for token_id in had):
            raise FieldError("generated_token_ids", "a token id is outside the vocabulary")
        before = await asyncio.to_thread(answer_text.push, had) if had else answer_text.push(())
        if before.num_tokens < len(had):
            raise FieldError("generated_token_ids", "go on after the answer's stop string")
        tally = Tally(len(prompt), had)
        reason, stop = FinishReason.UNSPECIFIED, before.stop
        if stop:
            # All that the caller missed is the end.
            reason, items = FinishReason.STOP, _nothing()
            yield started
        else:
            key = arrival.session_id or prefix_key(prompt)
            items = self._failover.generate(opening, model, key)
        has_started = False
        async with contextlib.aclosing(items):
            async for item in items:
                if isinstance(item, Seam):
                    trace.record_seam(item)
                    tally.add_failover()
                    continue
                # Only now has the verifier taken the request: a refusal comes before any answer.
                if not has_started:
                    yield started
                has_started = True
                if isinstance(item, Final):
                    if item.digest != tally.digest():
                        raise Refusal(
                            grpc.StatusCode.DATA_LOSS, "the answer differs from what was generated"
                        )
                    reason, piece = item.finish_reason, answer_text.flush()
                    delta = Delta(piece.text, (), (), None, None)
                else:
                    piece = answer_text.push(item.token_ids)
                    delta = delivered(item, piece)
                    if delta.prefill:
                        trace.record_prefill(delta.prefill)
                    if delta.round:
                        trace.record_round(delta.round)
                        self._hub.publish(answer_id, request.workload, delta.round)
                    tally.add(delta, arrival.elapsed_s)
                if delta.token_ids or delta.text:
                    yield delta
                if piece.stop:
                    reason, stop = FinishReason.STOP, piece.stop
                    break
        finished = tally.finished(reason, stop, arrival.elapsed_s)
        trace.finish(model.name, finished)
        log.info(
            "answer %s: %d tokens in %d rounds, %.0f ms, %s",
            answer_id,
            finished.num_completion_tokens,
            finished.totals.num_rounds,
            finished.duration_us / 1000,
            finished.finish_reason.label,
        )
        yield finished


async def _nothing() -> AsyncGenerator[Tokens | Seam | Final, None]:
    nothing: Sequence[Tokens] = ()
    for tokens in nothing:
        yield tokens


def stop_ids(request: Request, model: ServedModel) -> frozenset[int]:
    """The ids that end this answer and have no text in it."""
    listed = frozenset(request.params.stop_token_ids)
    return listed if request.params.ignore_eos else listed | model.eos_token_ids


def delivered(tokens: Tokens, piece: Piece) -> Delta:
    """What the client gets of a round: no token after the one that completed a stop string."""
    num_tokens = piece.num_tokens
    return Delta(
        text=piece.text,
        token_ids=tokens.token_ids[:num_tokens],
        sources=tokens.sources[:num_tokens],
        logprobs=tokens.logprobs[:num_tokens],
        round=cut_round(tokens.round, num_tokens) if tokens.round else None,
        prefill=tokens.prefill,
        lengths=piece.lengths,
    )


def time_left_ms(timeout_ms: int, arrival: Arrival) -> int:
    """Milliseconds left of the request's timeout and the call's deadline; 0 when there is none.

    Raises DEADLINE_EXCEEDED when nothing is left.
    """
    limits_s = [timeout_ms / 1000] if timeout_ms else []
    if arrival.remaining_s is not None:
        limits_s.append(arrival.remaining_s)
    if not limits_s:
        return 0
    left_ms = int((min(limits_s) - arrival.elapsed_s) * 1000)
    if left_ms < 1:
        raise Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "no time was left to begin the answer")
    return min(left_ms, 2**32 - 1)
