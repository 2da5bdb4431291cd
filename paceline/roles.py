"""Who may call whom, by the names in a certificate. Knows the services' names and nothing of them.

A certificate has the role R if one of its DNS names is `R.paceline`. Whoever dials a service asks
for that name, so the role is checked in both directions: no drafter can pass for a verifier.
"""

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc

DOMAIN = "paceline"
GATEWAY, VERIFIER, DRAFTER, OPERATOR = "gateway", "verifier", "drafter", "operator"
ROLES = frozenset({GATEWAY, VERIFIER, DRAFTER, OPERATOR})

# Service -> roles that may call it. The gateway's callers are clients, which have no role.
CALLERS: Mapping[str, frozenset[str]] = {
    "paceline.v1.GatewayService": frozenset({OPERATOR}),
    "paceline.v1.VerifierService": frozenset({GATEWAY, OPERATOR}),
    "paceline.v1.DrafterService": frozenset({VERIFIER, OPERATOR}),
}
TAKES_CLIENTS = frozenset({"paceline.v1.GatewayService"})
# A caller with any certificate may ask for these.
OPEN_TO_ALL = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})


def server_name(role: str) -> str:
    """The name that a service of this role has in its certificate."""
    return f"{role}.{DOMAIN}"


def roles_of(names: Sequence[str]) -> frozenset[str]:
    """The roles among a certificate's alternative names."""
    found = {name.lower().removesuffix(f".{DOMAIN}") for name in names if name.lower() in _NAMES}
    return frozenset(found)


_NAMES = frozenset(server_name(role) for role in ROLES)


def may_call(roles: frozenset[str], method: str) -> bool:
    """Whether a certificate with these roles may call `/package.Service/Method`."""
    service = method.lstrip("/").partition("/")[0]
    if service in OPEN_TO_ALL:
        return True
    if not roles:
        return service in TAKES_CLIENTS
    return bool(roles & CALLERS.get(service, frozenset()))


class RoleGuard(grpc.aio.ServerInterceptor):
    """Refuses calls that the caller's certificate gives no right to. For ports with mTLS only."""

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: Any,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return _guarded(handler, handler_call_details.method)


async def _check(method: str, context: Any) -> None:
    names = context.auth_context().get("x509_subject_alternative_name", ())
    if not may_call(roles_of([name.decode("ascii", "replace") for name in names]), method):
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, "this certificate's role may not call this method"
        )


def _guarded(handler: Any, method: str) -> Any:
    """The same handler behind the check."""
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    kind = next(kind for kind in kinds if getattr(handler, kind))
    inner = getattr(handler, kind)

    async def answer(request: Any, context: Any) -> Any:
        await _check(method, context)
        return await inner(request, context)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        await _check(method, context)
        async with contextlib.aclosing(inner(request, context)) as responses:
            async for response in responses:
                yield response

    guarded = stream if inspect.isasyncgenfunction(inner) else answer
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(guarded, handler.request_deserializer, handler.response_serializer)
