"""Who asks over HTTP, and when: the one place that reads a request's headers for the gateway."""

from starlette.requests import Request

from gateway.answers import Arrival
from paceline import telemetry


def arrival_of(request: Request) -> Arrival:
    """What every route under /v1 depends on."""
    unix_nanos, monotonic_s = request.state.arrived
    return Arrival(
        unix_nanos=unix_nanos,
        monotonic_s=monotonic_s,
        parent=telemetry.parse_context(
            request.headers.get("traceparent", ""), request.headers.get("tracestate", "")
        ),
    )
