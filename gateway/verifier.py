"""One verifier: its channel, how it does, what it serves, and sequences on it. Messages stop here.

Knows nothing of sessions, text deltas or placement.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.breaker import Breaker
from gateway.heartbeat import ANSWER_S, INTERVAL_S, Heartbeat
from gateway.sequence_codec import (
    end_to_pb,
    final_from_pb,
    model_from_pb,
    open_to_pb,
    status_from_pb,
    tokens_from_pb,
)
from gateway.sequences import Cause, Final, Lost, Open, ServedModel, Tokens
from gateway.steady_call import CLOSE_S, SteadyCall
from gateway.text import Text
from paceline.roles import VERIFIER, server_name
from paceline.server import Refusal, open_channel
from paceline.tls import Reloader, TlsFiles
from paceline.v1 import verifier_pb2, verifier_pb2_grpc

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 0.5
FETCH_S = 30.0
# The verifier keeps the time; this is for one that hangs.
TIMEOUT_MARGIN_S = 1.0


class Verifier:
    """A verifier at one address. `start` keeps trying to reach it until `close`."""

    def __init__(
        self,
        address: str,
        on_change: Callable[[], None],
        *,
        stall_s: float,
        tls: TlsFiles | None = None,
    ) -> None:
        """`on_change` is called whenever `is_ready` changes; `stall_s` is `Heartbeat`'s."""
        self.address = address
        # Sequences of this gateway, and of others as far as it says.
        self.num_live = 0
        self.num_foreign = 0
        # No longer among the addresses: takes nothing new.
        self.is_leaving = False
        # Counts the processes seen at the address.
        self.incarnation = 0
        self.breaker = Breaker(time.monotonic)
        # What it serves, or served last.
        self.model: ServedModel | None = None
        self.text: Text | None = None
        self._serving = False
        self._frozen = False
        self._draining = False
        self._stall_s = stall_s
        self._heartbeat = Heartbeat(stall_s, time.monotonic)
        self._files: dict[str, bytes] = {}
        self._trouble = ""
        self._on_change = on_change
        self._tls = tls
        self._certificates = Reloader(tls) if tls else None
        self._tasks: list[asyncio.Task[None]] = []
        self._calls: set[SteadyCall] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._open()

    def _open(self) -> None:
        self._channel = open_channel(self.address, tls=self._tls, server_name=server_name(VERIFIER))
        # Generated stubs carry no types.
        self._stub: Any = verifier_pb2_grpc.VerifierServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)

    def _renew(self) -> None:
        """Dials with the certificate as it is now; a channel keeps the one it began with."""
        if self._certificates and self._certificates.changed():
            task = asyncio.create_task(self._channel.close(CLOSE_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            self._open()

    @property
    def is_ready(self) -> bool:
        """It serves by its own word, answers, and makes progress."""
        return self._serving and not self._frozen

    @property
    def takes_sequences(self) -> bool:
        return self.is_ready and not self.is_leaving and self.breaker.allows

    @property
    def load(self) -> int:
        return self.num_live + self.num_foreign

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._beat())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closing, return_exceptions=True)
        await self._channel.close()

    async def generate(self, opening: Open) -> AsyncGenerator[Tokens | Final, None]:
        """The sequence's tokens, a `Tokens` per round, and `Final`.

        Closing the iterator before `Final` ends the sequence at the verifier. Raises the Refusal
        that the verifier made, or `Lost` when it went away or freezes. Nothing that it sends after
        that is ever read: the call is cancelled.
        """
        timeout_s = opening.timeout_ms / 1000 + TIMEOUT_MARGIN_S if opening.timeout_ms else None
        call = SteadyCall(self._stub.Generate(timeout=timeout_s))
        num_tokens = len(opening.generated_token_ids)
        final = None
        self.num_live += 1
        self._calls.add(call)
        self.breaker.begin()
        try:
            with self._sequence_errors():
                # A call that is refused at once cannot be written to; reading tells why.
                with contextlib.suppress(asyncio.InvalidStateError):
                    await call.write(open_to_pb(opening))
                while final is None:
                    response = await call.read()
                    if response is grpc.aio.EOF:
                        raise Lost(self._cause())
                    self.breaker.succeed()
                    if response.WhichOneof("response") == "final":
                        final = final_from_pb(response.final)
                        yield final
                        break
                    tokens = tokens_from_pb(response.tokens)
                    if tokens.start_index != num_tokens:
                        raise Refusal(grpc.StatusCode.INTERNAL, "the verifier's tokens have a gap")
                    num_tokens += len(tokens.token_ids)
                    self._heartbeat.moved()
                    yield tokens
        finally:
            self.num_live -= 1
            self._calls.discard(call)
            self.breaker.give_up()
            task = asyncio.create_task(call.close(None if final else end_to_pb()))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _cause(self) -> Cause:
        if self._frozen:
            return Cause.FROZE
        return Cause.DRAINED if self._draining else Cause.DIED

    @contextlib.contextmanager
    def _sequence_errors(self) -> Iterator[None]:
        """Turns a sequence's errors into the Refusal for the client, or into `Lost`."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            if error.code() in lost and not _is_explained(error):
                raise Lost(self._cause()) from error
            refusal = Refusal.from_rpc_error(error)
            if refusal.code is grpc.StatusCode.UNAVAILABLE:
                raise Lost(Cause.DRAINED, refusal.message, refusal.retry_after_s) from error
            if refusal.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                self.breaker.fail()
            raise refusal from error
        except asyncio.CancelledError:
            # grpc.aio raises this for a call that the server, or `_set_frozen`, cancelled, too.
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                raise Lost(self._cause()) from None
            raise

    async def _follow(self) -> None:
        """Follows the verifier's own word on its health; fetches what it serves when it is up."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                watch = self._health.Watch(health_pb2.HealthCheckRequest(service=""))
                is_new = True
                async for report in watch:
                    serving = report.status == health_pb2.HealthCheckResponse.SERVING
                    if serving:
                        if is_new:
                            await self._fetch()
                            self._heartbeat = Heartbeat(self._stall_s, time.monotonic)
                            self.incarnation += 1
                        is_new = False
                        pause_s = FIRST_PAUSE_S
                    self._draining = not serving
                    self._set_state(serving=serving, frozen=self._heartbeat.is_frozen)
                self._explain("does not answer")
            except grpc.aio.AioRpcError as error:
                self._explain(
                    (error.details() or "") if _is_explained(error) else "does not answer"
                )
            except ValueError as error:
                self._explain(str(error))
            except Exception:
                log.exception("verifier %s: cannot be followed", self.address)
            if self.is_ready:
                self.breaker.fail()
            self._set_state(serving=False, frozen=False)
            self._renew()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    async def _beat(self) -> None:
        """Asks how the verifier does, and cuts its sequences when it does nothing."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            if not self._serving and not self._calls:
                continue
            try:
                response = await self._stub.GetStatus(
                    verifier_pb2.GetStatusRequest(), timeout=ANSWER_S
                )
                status = status_from_pb(response)
                self._heartbeat.answered(status)
                self.num_foreign = max(0, status.num_running + status.num_waiting - self.num_live)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._heartbeat.missed()
            except asyncio.CancelledError:
                # As for a sequence: the connection may have cancelled the call.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
            self._set_state(serving=self._serving, frozen=self._heartbeat.is_frozen)

    async def _fetch(self) -> None:
        """Asks for the model and its tokenizer. Raises AioRpcError, or ValueError for bad files."""
        model = await self._stub.GetModel(verifier_pb2.GetModelRequest(), timeout=FETCH_S)
        pieces: dict[str, list[bytes]] = {}
        async for piece in self._stub.GetTokenizer(
            verifier_pb2.GetTokenizerRequest(), timeout=FETCH_S
        ):
            pieces.setdefault(piece.file, []).append(piece.data)
        files = {name: b"".join(parts) for name, parts in pieces.items()}
        if files != self._files or self.text is None:
            self.text = await asyncio.to_thread(Text, files)
            self._files = files
        self.model = model_from_pb(model)
        self._trouble = ""

    def _explain(self, trouble: str) -> None:
        """Logs why the verifier is not ready, once for each reason."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("verifier %s: %s", self.address, trouble)

    def _set_state(self, *, serving: bool, frozen: bool) -> None:
        was_ready, was_frozen = self.is_ready, self._frozen
        self._serving, self._frozen = serving, frozen
        if frozen and not was_frozen:
            log.warning("verifier %s: frozen with %d sequences", self.address, self.num_live)
            self.breaker.fail()
            for call in list(self._calls):
                call.cancel()
        if self.is_ready != was_ready:
            served = self.model.name if self.model else ""
            word = "ready with" if self.is_ready else "lost"
            log.info("verifier %s: %s %s", self.address, word, served)
            self._on_change()


def _is_explained(error: grpc.aio.AioRpcError) -> bool:
    """A service's own refusals carry details; the transport's errors carry none."""
    return "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
