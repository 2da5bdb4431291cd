"""python -m gateway: settings in, server up, READY on stdout."""

import asyncio
import logging

from gateway.config import GatewaySettings
from gateway.gateway import Gateway
from paceline import telemetry
from paceline.metrics import aliases, instruments
from paceline.metrics.endpoint import open_endpoint
from paceline.server import refuse_exposure, run, set_up_logging

log = logging.getLogger("gateway")


async def serve(settings: GatewaySettings) -> None:
    """Serves until SIGTERM or SIGINT, then drains."""
    provider = telemetry.set_up("paceline-gateway")
    endpoint = open_endpoint(settings, instruments.GATEWAY, aliases.GATEWAY)
    gateway = Gateway(settings, provider, endpoint.metrics if endpoint else None)
    await gateway.start()

    async def announce() -> None:
        log.info("listening on %s, verifiers: %s", gateway.address, ", ".join(settings.verifier))
        if gateway.http_address:
            scheme = "https" if settings.tls_cert else "http"
            log.info("HTTP on %s://%s", scheme, gateway.http_address)
        await gateway.wait_ready()
        print(f"READY gateway {gateway.address}", flush=True)

    # Runs once signals are handled.
    announcing = asyncio.create_task(announce())
    try:
        await gateway.service.serve_until_signal(gateway.drain)
    finally:
        announcing.cancel()
        await gateway.close()
        if endpoint:
            endpoint.close()
        telemetry.shut_down(provider)


def main() -> None:
    settings = GatewaySettings.load()
    set_up_logging(settings.log_level)
    for host in filter(None, (settings.host, settings.http_host)):
        refuse_exposure(
            host,
            settings.insecure,
            encrypted=bool(settings.tls_cert),
            authenticated=bool(settings.tls_client_ca or settings.api_keys),
        )
    run(serve(settings))


if __name__ == "__main__":
    main()
