"""python -m gateway: settings in, server up, READY on stdout."""

import asyncio
import logging

from gateway.config import GatewaySettings
from gateway.gateway import Gateway
from paceline import telemetry
from paceline.server import refuse_exposure, run, set_up_logging

log = logging.getLogger("gateway")


async def serve(settings: GatewaySettings) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    provider = telemetry.set_up("paceline-gateway")
    gateway = Gateway(settings, provider)
    await gateway.start()

    async def announce() -> None:
        log.info("listening on %s, verifiers: %s", gateway.address, ", ".join(settings.verifier))
        if gateway.http_address:
            log.info("HTTP on http://%s", gateway.http_address)
        await gateway.wait_ready()
        print(f"READY gateway {gateway.address}", flush=True)

    # Runs once signals are handled.
    announcing = asyncio.create_task(announce())
    try:
        await gateway.service.serve_until_signal(gateway.drain)
    finally:
        announcing.cancel()
        await gateway.close()
        provider.shutdown()


def main() -> None:
    settings = GatewaySettings.load()
    set_up_logging(settings.log_level)
    refuse_exposure(settings.host, settings.insecure)
    if settings.http_host:
        refuse_exposure(settings.http_host, settings.insecure)
    run(serve(settings))


if __name__ == "__main__":
    main()
