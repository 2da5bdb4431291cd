"""SteadyCall: what is cancelled is the one who waits, never an operation of grpc.aio."""

import asyncio
from typing import Any

import grpc
import pytest

from gateway.steady_call import SteadyCall


class FakeCall:
    """Operations that end when they are told to. Says which were cancelled."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.may_write = asyncio.Event()
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.num_cancelled_operations = 0
        self.has_ended = self.is_half_closed = self.is_cancelled = False

    async def _until(self, operation: Any) -> Any:
        try:
            return await operation
        except asyncio.CancelledError:
            self.num_cancelled_operations += 1
            raise

    async def write(self, message: Any) -> None:
        await self._until(self.may_write.wait())
        self.sent.append(message)

    async def read(self) -> Any:
        if self.has_ended:
            return grpc.aio.EOF
        message = await self._until(self.inbox.get())
        self.has_ended = message is grpc.aio.EOF
        return message

    async def done_writing(self) -> None:
        self.is_half_closed = True
        self.inbox.put_nowait(grpc.aio.EOF)

    def cancel(self) -> None:
        self.is_cancelled = True


async def cancelled(waiting: asyncio.Task[Any]) -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_reader_that_is_cancelled_leaves_its_read_to_close():
    fake = FakeCall()
    fake.may_write.set()
    call = SteadyCall(fake)
    await call.write("open")
    await cancelled(asyncio.create_task(call.read()))
    await call.close("end")
    assert fake.sent == ["open", "end"]
    assert fake.is_half_closed
    assert fake.num_cancelled_operations == 0


async def test_a_writer_that_is_cancelled_has_its_message_sent_before_the_last_words():
    fake = FakeCall()
    call = SteadyCall(fake)
    await cancelled(asyncio.create_task(call.write("open")))
    closing = asyncio.create_task(call.close("end"))
    await asyncio.sleep(0)
    assert fake.sent == []
    fake.may_write.set()
    await closing
    assert fake.sent == ["open", "end"]
    assert fake.num_cancelled_operations == 0


async def test_a_call_that_does_not_end_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.steady_call.CLOSE_S", 0.05)
    fake = FakeCall()
    call = SteadyCall(fake)
    await cancelled(asyncio.create_task(call.write("open")))
    await call.close("end")
    assert fake.is_cancelled
    assert fake.sent == []
