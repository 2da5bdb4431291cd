"""A scripted GatewayService: it answers every request with the same words.

It runs on gRPC's own threads, so that a command under test may have the event loop to itself.
"""

import hashlib
import socket
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from paceline.server import Refusal
from paceline.v1 import gateway_pb2, gateway_pb2_grpc, tokens_pb2

WORDS = ("Light", " is", " scattered", " by", " air", ",", " blue", " most", ".")
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
DEADLINE_S = 10.0


class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """What it was asked stands in `requests`; the other attributes script what it does."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.sessions: dict[str, list[str]] = {}
        self.refusal: Refusal | None = None
        # Refuses only this many calls; None: every one.
        self.refusals_left: int | None = None
        self.diverges = False
        self.stops_before_finished = False
        # An answer pauses after its first delta while this is cleared.
        self.released = threading.Event()
        self.released.set()
        self.cancelled = threading.Event()
        self.watched: list[gateway_pb2.WatchRoundsResponse] = []
        self.trace = gateway_pb2.GetTraceResponse()

    def Generate(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.requests.append(request)
        self._refuse(context)
        completed = self._completion(context)
        answers = [
            self._answer(request.params, request.draft, request.seed + index, context)
            for index in range(max(request.n, 1))
        ]
        # Together, the last one first.
        for responses in zip(*answers, strict=True):
            for index, (kind, message) in reversed(list(enumerate(responses))):
                yield gateway_pb2.GenerateResponse(index=index, **{kind: message})
        completed.set()

    def Chat(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        opening = next(requests).open
        self.requests.append(opening)
        completed = self._completion(context)
        session_id = opening.session_id or f"session-{len(self.sessions) + 1}"
        turns = self.sessions.setdefault(session_id, [])
        yield gateway_pb2.ChatResponse(
            session=gateway_pb2.Session(session_id=session_id, model="fake", num_turns=len(turns))
        )
        for request in requests:
            if request.WhichOneof("request") == "end":
                completed.set()
                return
            self.requests.append(request.turn)
            self._refuse(context)
            turns.append(request.turn.content)
            turn = request.turn
            for kind, message in self._answer(opening.params, opening.draft, turn.seed, context):
                yield gateway_pb2.ChatResponse(**{kind: message})

    def GetSession(self, request: Any, context: grpc.ServicerContext) -> Any:
        turns = self.sessions[request.session_id]
        messages = [gateway_pb2.ChatMessage(role="user", content=turn) for turn in turns]
        session = gateway_pb2.Session(session_id=request.session_id, messages=messages)
        return gateway_pb2.GetSessionResponse(session=session)

    def CloseSession(self, request: Any, context: grpc.ServicerContext) -> Any:
        del self.sessions[request.session_id]
        return gateway_pb2.CloseSessionResponse()

    def ListModels(self, request: Any, context: grpc.ServicerContext) -> Any:
        return gateway_pb2.ListModelsResponse(models=[gateway_pb2.Model(name="fake")])

    def WatchRounds(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.requests.append(request)
        yield from self.watched

    def GetTrace(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        self._refuse(context)
        return self.trace

    def _refuse(self, context: grpc.ServicerContext) -> None:
        if self.refusal is None or self.refusals_left == 0:
            return
        if self.refusals_left is not None:
            self.refusals_left -= 1
        context.abort_with_status(rpc_status.to_status(self.refusal.status()))

    def _answer(
        self, params: Any, draft: Any, seed: int, context: grpc.ServicerContext
    ) -> Iterator[tuple[str, Any]]:
        words = list(WORDS[: params.max_tokens])
        speculative = draft.speculation != tokens_pb2.SPECULATION_OFF
        token_ids = [100 + index for index in range(len(words))]
        if speculative and self.diverges:
            token_ids[-1] += 1
        yield (
            "started",
            gateway_pb2.Started(
                id="req-1", model="fake", seed=seed, num_prompt_tokens=11, trace_id=TRACE_ID
            ),
        )
        totals = tokens_pb2.SpeculationTotals()
        size = 3 if speculative else 1
        for start in range(0, len(words), size):
            chosen = token_ids[start : start + size]
            report = _round(totals.num_rounds + 1, len(chosen), speculative)
            _count(totals, report)
            yield (
                "delta",
                gateway_pb2.Delta(
                    text="".join(words[start : start + size]),
                    token_ids=chosen,
                    round=report,
                    logprobs=_logprobs(params, chosen),
                ),
            )
            if not self._wait_for_release(context):
                return
        if self.stops_before_finished:
            return
        whole = len(words) == len(WORDS)
        digest = hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in token_ids)).digest()
        yield (
            "finished",
            gateway_pb2.Finished(
                finish_reason=(
                    tokens_pb2.FINISH_REASON_STOP if whole else tokens_pb2.FINISH_REASON_LENGTH
                ),
                usage=tokens_pb2.Usage(num_prompt_tokens=11, num_completion_tokens=len(words)),
                totals=totals,
                time_to_first_token_us=12_500,
                duration_us=100_000 if speculative else 200_000,
                digest=digest,
            ),
        )

    def _completion(self, context: grpc.ServicerContext) -> threading.Event:
        """To be set at the end of a call: one that ends without it counts as cancelled."""
        completed = threading.Event()

        def ended() -> None:
            if not completed.is_set():
                self.cancelled.set()

        if not context.add_callback(ended):
            ended()
        return completed

    def _wait_for_release(self, context: grpc.ServicerContext) -> bool:
        while not self.released.wait(0.01):
            if not context.is_active():
                self.cancelled.set()
                return False
        return True


def _logprobs(params: Any, token_ids: list[int]) -> list[tokens_pb2.TokenLogprobs]:
    if not params.HasField("num_logprobs"):
        return []
    num_top = params.num_logprobs
    return [
        tokens_pb2.TokenLogprobs(
            logprob=-0.5,
            top_token_ids=[token_id, 7][:num_top],
            top_logprobs=[-0.5, -1.5][:num_top],
        )
        for token_id in token_ids
    ]


def _round(number: int, num_output: int, speculative: bool) -> tokens_pb2.RoundReport:
    if not speculative:
        return tokens_pb2.RoundReport(
            round=number,
            num_output=num_output,
            plain_reason=tokens_pb2.PLAIN_REASON_SPECULATION_OFF,
            verify_us=20_000,
        )
    return tokens_pb2.RoundReport(
        round=number,
        num_drafted=4,
        num_tested=num_output,
        num_accepted=num_output - 1,
        num_output=num_output,
        source=tokens_pb2.TOKEN_SOURCE_PROMPT_LOOKUP,
        draft_us=400,
        wait_us=100,
        verify_us=24_600,
    )


def _count(totals: tokens_pb2.SpeculationTotals, report: tokens_pb2.RoundReport) -> None:
    totals.num_rounds += 1
    totals.num_drafted_rounds += report.num_drafted > 0
    totals.num_drafted += report.num_drafted
    totals.num_tested += report.num_tested
    totals.num_accepted += report.num_accepted


@contextmanager
def serve(gateway: FakeGateway, *, serving: bool = True) -> Iterator[str]:
    """Serves it, with health, on a free loopback port; yields the address."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(gateway, server)
    states = health_pb2.HealthCheckResponse
    checks = health.HealthServicer()
    checks.set("", states.SERVING if serving else states.NOT_SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        gateway.released.set()
        server.stop(None).wait(DEADLINE_S)


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
