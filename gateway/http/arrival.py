"""Who asks over HTTP, and when: the one place that reads a request's headers for the gateway."""

from collections.abc import Callable, Coroutine
from typing import Any

import grpc
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers import Arrival
from gateway.keys import Keys
from paceline import telemetry
from paceline.limits import label_violations
from paceline.roles import may_call, roles_of
from paceline.server import Refusal

SESSION = "X-Paceline-Session"
METHOD = "/paceline.v1.GatewayService/HTTP"


def routes_for_callers(keys: Keys) -> type[APIRoute]:
    """The class of routes that take in callers with a key, before anything of a body is read."""

    class CallerRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def take_in(request: Request) -> Response:
                request.state.arrival = _arrive(request, keys)
                return await handle(request)

            return take_in

    return CallerRoute


def arrival_of(request: Request) -> Arrival:
    """Of a request to a route for callers."""
    arrival = request.state.arrival
    assert isinstance(arrival, Arrival)
    return arrival


def _arrive(request: Request, keys: Keys) -> Arrival:
    """Raises PERMISSION_DENIED for a certificate of another role, UNAUTHENTICATED without a key,
    INVALID_ARGUMENT for a session that is no label."""
    if not may_call(roles_of(request.state.peer_names), METHOD):
        raise Refusal(
            grpc.StatusCode.PERMISSION_DENIED, "this certificate's role may not call this method"
        )
    tenant = keys.identify(request.headers)
    session_id = request.headers.get(SESSION, "")
    if violations := label_violations(SESSION, session_id):
        raise Refusal.invalid(violations)
    unix_nanos, monotonic_s = request.state.arrived
    return Arrival(
        unix_nanos=unix_nanos,
        monotonic_s=monotonic_s,
        tenant=tenant,
        parent=telemetry.parse_context(
            request.headers.get("traceparent", ""), request.headers.get("tracestate", "")
        ),
        session_id=session_id,
    )
