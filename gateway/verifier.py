"""One verifier: its channel, what it serves, and sequences on it. Messages stop here.

Knows nothing of sessions, text deltas or placement.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.sequence_codec import final_from_pb, model_from_pb, open_to_pb, tokens_from_pb
from gateway.sequences import Final, Open, ServedModel, Tokens
from gateway.text import Text
from paceline.roles import VERIFIER, server_name
from paceline.server import Refusal, open_channel
from paceline.tls import Reloader, TlsFiles
from paceline.v1 import drafter_pb2, verifier_pb2, verifier_pb2_grpc

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.1
LAST_PAUSE_S = 2.0
FETCH_S = 30.0
# How long a verifier gets to end a call before it is cancelled.
CLOSE_S = 1.0
# The verifier keeps the time; this is for one that hangs.
TIMEOUT_MARGIN_S = 1.0


class Verifier:
    """A verifier at one address. `start` keeps trying to reach it until `close`."""

    def __init__(
        self, address: str, on_change: Callable[[], None], tls: TlsFiles | None = None
    ) -> None:
        """`on_change` is called whenever `is_ready` changes."""
        self.address = address
        self.num_live = 0
        self.is_ready = False
        # What it serves, or served last.
        self.model: ServedModel | None = None
        self.text: Text | None = None
        self._files: dict[str, bytes] = {}
        self._trouble = ""
        self._on_change = on_change
        self._tls = tls
        self._certificates = Reloader(tls) if tls else None
        self._closing: set[asyncio.Task[None]] = set()
        self._open()
        self._following: asyncio.Task[None] | None = None

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

    def start(self) -> None:
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        tasks = [*self._closing, *([self._following] if self._following else [])]
        if self._following:
            self._following.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._channel.close()

    async def generate(self, opening: Open) -> AsyncGenerator[Tokens | Final, None]:
        """The sequence's tokens, a `Tokens` per round, and `Final`.

        Closing the iterator before `Final` ends the sequence at the verifier. Raises the Refusal
        that the verifier made, or UNAVAILABLE when it went away.
        """
        timeout_s = opening.timeout_ms / 1000 + TIMEOUT_MARGIN_S if opening.timeout_ms else None
        call = self._stub.Generate(timeout=timeout_s)
        num_tokens = len(opening.generated_token_ids)
        final = None
        self.num_live += 1
        try:
            with _verifier_errors():
                # A call that is refused at once cannot be written to; reading tells why.
                with contextlib.suppress(asyncio.InvalidStateError):
                    await call.write(open_to_pb(opening))
                while final is None:
                    response = await call.read()
                    if response is grpc.aio.EOF:
                        raise _went_away()
                    if response.WhichOneof("response") == "final":
                        final = final_from_pb(response.final)
                        yield final
                        break
                    tokens = tokens_from_pb(response.tokens)
                    if tokens.start_index != num_tokens:
                        raise Refusal(grpc.StatusCode.INTERNAL, "the verifier's tokens have a gap")
                    num_tokens += len(tokens.token_ids)
                    yield tokens
        finally:
            self.num_live -= 1
            task = asyncio.create_task(_close(call, say_end=final is None))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _follow(self) -> None:
        """Follows the verifier's own word on its health; fetches what it serves when it is up."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                with _verifier_errors():
                    watch = self._health.Watch(health_pb2.HealthCheckRequest(service=""))
                    async for report in watch:
                        serving = report.status == health_pb2.HealthCheckResponse.SERVING
                        if serving:
                            await self._fetch()
                            pause_s = FIRST_PAUSE_S
                        self._set_ready(serving)
            except Refusal as refusal:
                lost = refusal.code is grpc.StatusCode.UNAVAILABLE
                self._explain("does not answer" if lost else refusal.message)
            except ValueError as error:
                self._explain(str(error))
            except Exception:
                log.exception("verifier %s: cannot be followed", self.address)
            self._set_ready(False)
            self._renew()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

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

    def _set_ready(self, ready: bool) -> None:
        if ready == self.is_ready:
            return
        self.is_ready = ready
        served = self.model.name if self.model else ""
        log.info("verifier %s: %s %s", self.address, "ready with" if ready else "lost", served)
        self._on_change()


def _went_away() -> Refusal:
    return Refusal(grpc.StatusCode.UNAVAILABLE, "the verifier went away", retry_after_s=1.0)


@contextlib.contextmanager
def _verifier_errors() -> Iterator[None]:
    """Turns a call's errors into the Refusal for the client."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        # A service's own refusals carry details; the transport's errors carry none.
        explained = "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
        lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        if error.code() in lost and not explained:
            raise _went_away() from error
        raise Refusal.from_rpc_error(error) from error
    except asyncio.CancelledError:
        # grpc.aio raises this for a call that the server cancelled, too.
        task = asyncio.current_task()
        if task is not None and not task.cancelling():
            raise _went_away() from None
        raise


async def _close(call: Any, *, say_end: bool) -> None:
    """Lets the verifier end the call, after `end` if need be; cancels it when that takes long."""
    lost = (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError)
    try:
        with contextlib.suppress(*lost):
            async with asyncio.timeout(CLOSE_S):
                if say_end:
                    end = verifier_pb2.VerifierGenerateRequest(end=drafter_pb2.EndOfStream())
                    await call.write(end)
                await call.done_writing()
                while await call.read() is not grpc.aio.EOF:
                    pass
    finally:
        call.cancel()
