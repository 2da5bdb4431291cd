"""Wires the verifier service together: model, engine, drafters, server."""

import asyncio
import functools
import gc
import logging
from concurrent.futures import ThreadPoolExecutor

import torch

from paceline import telemetry
from paceline.lookup.warm_table import BadTable
from paceline.metrics import aliases, instruments
from paceline.metrics.endpoint import open_endpoint
from paceline.model.load import LoadError, load_model, tokenizer_files
from paceline.model.numerics import NotExact
from paceline.server import INTERNAL_MESSAGE_BYTES, Service, refuse_exposure, run
from paceline.v1 import verifier_pb2_grpc
from verifier_service.config import VerifierSettings
from verifier_service.drafters import DrafterPool
from verifier_service.engine import Engine
from verifier_service.links import Update
from verifier_service.metrics import VerifierMetrics
from verifier_service.opening import AHEAD
from verifier_service.sequence import Event, Sink
from verifier_service.servicer import VerifierServicer
from verifier_service.spans import StepWatcher

log = logging.getLogger(__name__)


def main(settings: VerifierSettings) -> None:
    refuse_exposure(
        settings.host,
        settings.insecure,
        encrypted=bool(settings.tls_cert),
        authenticated=bool(settings.tls_client_ca),
    )
    torch.set_num_threads(settings.threads)
    run(_serve(settings))


async def _serve(settings: VerifierSettings) -> None:
    loop = asyncio.get_running_loop()
    service = Service(
        "paceline.v1.VerifierService",
        host=settings.host,
        port=settings.port,
        drain_s=settings.drain_s,
        message_bytes=INTERNAL_MESSAGE_BYTES,
        with_reflection=settings.reflection,
        tls=settings.port_tls,
    )
    # One thread for all of torch, loading included: libgomp gives every thread that computes a pool
    # of its own, and spins hardly at all once the pools have more threads than there are cores.
    model_thread = ThreadPoolExecutor(1, "model")
    load = functools.partial(
        load_model,
        settings.model,
        dtype=settings.dtype,
        max_sequences=settings.max_sequences,
        max_context=settings.max_context,
        kv_tokens=settings.kv_tokens,
        compiling=settings.compiling,
        numerics=settings.numerics,
        device=settings.device,
    )
    try:
        model = await loop.run_in_executor(model_thread, load)
    except (LoadError, NotExact) as error:
        raise SystemExit(f"verifier_service: {error}") from None
    provider = telemetry.set_up("paceline-verifier")

    def deliver(events: list[tuple[Sink, Event]]) -> None:
        loop.call_soon_threadsafe(_hand_out, events)

    def send_updates(updates: dict[int, list[Update]]) -> None:
        loop.call_soon_threadsafe(pool.dispatch, updates)

    try:
        engine = Engine(model, settings, deliver, send_updates)
    except BadTable as error:
        raise SystemExit(f"verifier_service: {error}") from None
    endpoint = open_endpoint(settings, instruments.VERIFIER, aliases.VERIFIER)
    pool = DrafterPool(
        settings.drafter, model, engine, AHEAD * settings.max_draft_tokens, tls=settings.peer_tls
    )
    watcher = StepWatcher(loop, provider)
    if endpoint:
        watcher.metrics = VerifierMetrics(endpoint.metrics, engine, pool)
    if watcher.is_needed:
        engine.on_step = watcher.watch
    servicer = VerifierServicer(
        engine,
        pool,
        settings,
        tokenizer_files(settings.model),
        provider,
        service.draining.is_set,
    )
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(servicer, service.server)  # type: ignore[no-untyped-call]

    async def drained() -> None:
        while servicer.num_live:
            await asyncio.sleep(0.02)

    # What there is now stays until the end: not to be looked through again.
    gc.freeze()
    gc.enable()
    engine.start(model_thread)
    address = await service.start()
    await service.set_serving()
    print(f"READY verifier {address}", flush=True)
    await service.serve_until_signal(drained)
    await asyncio.to_thread(engine.stop)
    await pool.close()
    if endpoint:
        endpoint.close()
    telemetry.shut_down(provider)


def _hand_out(events: list[tuple[Sink, Event]]) -> None:
    for sink, event in events:
        sink(event)
