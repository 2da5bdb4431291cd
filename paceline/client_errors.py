"""How a call to a gateway fails: nobody there, or a refusal. Knows no method."""

import asyncio
import contextlib
from collections.abc import Iterator

import grpc

from paceline.server import Refusal


class Unreachable(Exception):
    """Nobody answers at the address, or whoever did is gone."""

    def __init__(self, address: str) -> None:
        super().__init__(f"no gateway answers at {address}")
        self.address = address


class Incomplete(Unreachable):
    """The gateway ended an answer in good order, and without its end: it is broken, not gone."""


@contextlib.contextmanager
def client_errors(address: str) -> Iterator[None]:
    """Turns a call's errors into `Unreachable` or the gateway's own `Refusal`."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        # A service's own refusals carry details; the transport's errors carry none.
        explained = "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
        if error.code() is grpc.StatusCode.UNAVAILABLE and not explained:
            raise Unreachable(address) from error
        raise Refusal.from_rpc_error(error) from error
    except asyncio.CancelledError:
        # grpc.aio raises this for a call that the *server* cancelled, too.
        task = asyncio.current_task()
        if task is not None and task.cancelling() == 0:
            raise Unreachable(address) from None
        raise
