"""Drafter, verifier and gateway in this process, so that a test can break one of them."""

import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import torch

from drafter_service.config import DrafterSettings
from drafter_service.drafters import open_drafter
from drafter_service.engine import DraftEngine
from drafter_service.servicer import SERVICE_NAME, DrafterServicer
from gateway.config import GatewaySettings
from gateway.gateway import Gateway
from paceline import telemetry
from paceline.model.load import load_model, tokenizer_files
from paceline.server import INTERNAL_MESSAGE_BYTES, Service
from paceline.v1 import drafter_pb2_grpc, verifier_pb2_grpc
from verifier_service.config import VerifierSettings
from verifier_service.drafters import DrafterPool
from verifier_service.engine import Engine
from verifier_service.opening import AHEAD
from verifier_service.servicer import VerifierServicer

DEADLINE_S = 30.0


@asynccontextmanager
async def services(
    target: str,
    drafter: DrafterSettings | None,
    local_sources: Sequence[str] = (),
    **verifier_settings: Any,
) -> AsyncIterator[str]:
    """The gateway's address, once the drafter is connected, if there is one."""
    num_threads = torch.get_num_threads()
    async with AsyncExitStack() as stack:
        # Small layers on few cores: two threads would mostly wait for each other.
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, num_threads)
        drafters = [await stack.enter_async_context(_drafter(drafter))] if drafter else []
        verifier = await stack.enter_async_context(
            _verifier(target, drafters, list(local_sources), **verifier_settings)
        )
        yield await stack.enter_async_context(_gateway(verifier))


def _service(name: str) -> Service:
    return Service(
        name,
        host="127.0.0.1",
        port=0,
        drain_s=0.0,
        message_bytes=INTERNAL_MESSAGE_BYTES,
        with_reflection=False,
    )


@asynccontextmanager
async def _drafter(settings: DrafterSettings) -> AsyncIterator[str]:
    engine = DraftEngine(
        open_drafter(settings),
        max_sequences=settings.max_sequences,
        max_draft_tokens=settings.max_draft_tokens,
    )
    engine.start()
    service = _service(SERVICE_NAME)
    drafter_pb2_grpc.add_DrafterServiceServicer_to_server(DrafterServicer(engine), service.server)
    try:
        yield await service.start()
    finally:
        await service.server.stop(0)
        await asyncio.to_thread(engine.stop)


@asynccontextmanager
async def _verifier(
    target: str, drafters: list[str], local_sources: list[str], **others: Any
) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    settings = VerifierSettings(
        model=target,
        dtype="float32",
        threads=1,
        drafter=drafters,
        local_sources=local_sources,
        **others,
    )
    model_thread = ThreadPoolExecutor(1, "model")
    load = functools.partial(
        load_model, target, dtype="float32", max_sequences=settings.max_sequences
    )
    model = await loop.run_in_executor(model_thread, load)

    def hand_out(events):
        for sink, event in events:
            sink(event)

    engine = Engine(
        model,
        settings,
        lambda events: loop.call_soon_threadsafe(hand_out, events),
        lambda updates: loop.call_soon_threadsafe(pool.dispatch, updates),
    )
    pool = DrafterPool(drafters, model, engine, AHEAD * settings.max_draft_tokens)
    servicer = VerifierServicer(
        engine, pool, settings, tokenizer_files(target), telemetry.set_up("test"), lambda: False
    )
    service = _service("paceline.v1.VerifierService")
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, service.server)
    engine.start(model_thread)
    address = await service.start()
    await service.set_serving()
    try:
        async with asyncio.timeout(DEADLINE_S):
            while any(link.state != "ready" for link in pool.links):
                await asyncio.sleep(0.01)
        yield address
    finally:
        await asyncio.to_thread(engine.stop)
        model_thread.shutdown()
        await pool.close()
        await service.server.stop(0)


@asynccontextmanager
async def _gateway(verifier: str) -> AsyncIterator[str]:
    gateway = Gateway(GatewaySettings(port=0, verifier=[verifier]), telemetry.set_up("test"))
    await gateway.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            await gateway.wait_ready()
        yield gateway.address
    finally:
        await gateway.close()
        await gateway.service.server.stop(0)
