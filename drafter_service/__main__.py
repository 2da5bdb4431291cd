"""`python -m drafter_service`: serves until SIGTERM."""

import asyncio
import functools
import os

from drafter_service.config import DrafterSettings
from drafter_service.drafters import open_drafter
from drafter_service.engine import DraftEngine
from drafter_service.metrics import observe
from drafter_service.servicer import SERVICE_NAME, DrafterServicer
from paceline import telemetry
from paceline.metrics import instruments
from paceline.metrics.endpoint import open_endpoint
from paceline.server import (
    INTERNAL_MESSAGE_BYTES,
    Service,
    refuse_exposure,
    run,
    set_up_logging,
)
from paceline.v1.drafter_pb2_grpc import add_DrafterServiceServicer_to_server


async def serve(settings: DrafterSettings) -> None:
    provider = telemetry.set_up("paceline-drafter")
    tracer = provider.get_tracer("paceline.drafter") if telemetry.exports(provider) else None
    engine = DraftEngine(
        open_drafter(settings),
        max_sequences=settings.max_sequences,
        max_draft_tokens=settings.max_draft_tokens,
        tracer=tracer,
    )
    endpoint = open_endpoint(settings, instruments.DRAFTER)
    if endpoint:
        observe(endpoint.metrics, engine)
    engine.start()
    service = Service(
        SERVICE_NAME,
        host=settings.host,
        port=settings.port,
        drain_s=settings.drain_s,
        message_bytes=INTERNAL_MESSAGE_BYTES,
        with_reflection=settings.reflection,
        tls=settings.port_tls,
    )
    servicer = DrafterServicer(engine)
    add_DrafterServiceServicer_to_server(servicer, service.server)  # type: ignore[no-untyped-call]
    address = await service.start()
    await service.set_serving()
    # From the loop, so that whoever reads the line finds the signal handlers in place.
    ready = functools.partial(print, f"READY drafter {address}", flush=True)
    asyncio.get_running_loop().call_soon(ready)
    try:
        await service.serve_until_signal(servicer.drain)
    finally:
        await asyncio.to_thread(engine.stop)
        if endpoint:
            endpoint.close()
        telemetry.shut_down(provider)


def main() -> None:
    settings = DrafterSettings.load()
    # Before torch is imported: spinning threads of two processes stall each other on shared cores.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    set_up_logging(settings.log_level)
    refuse_exposure(
        settings.host,
        settings.insecure,
        encrypted=bool(settings.tls_cert),
        authenticated=bool(settings.tls_client_ca),
    )
    run(serve(settings))


if __name__ == "__main__":
    main()
