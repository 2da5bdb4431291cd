"""What every HTTP request gets: an id, the time it came, and limits on its headers and body.

Plain ASGI around the whole application, so that errors pass through it, too, and streams are
not buffered.
"""

import asyncio
import logging
import re
import secrets
import time

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import bad_request

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 16 * 1024
MAX_BODY_BYTES = 4 * 2**20
BODY_S = 10.0
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Envelope:
    """Puts `request_id` and `arrived` (unix nanoseconds, monotonic seconds) into request.state.

    `peer_names` stands there from the connection on; none without a certificate.
    """

    def __init__(self, app: ASGIApp, *, body_s: float = BODY_S) -> None:
        self._app = app
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state.setdefault("peer_names", ())
        state["arrived"] = (time.time_ns(), time.monotonic())

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            problem = bad_request(f"headers have at most {MAX_HEADER_BYTES} bytes", 431)
            await JSONResponse(problem.body, problem.status)(scope, receive, send_with_id)
            return
        try:
            await self._app(scope, _limited(receive, self._body_s), send_with_id)
        except Exception:
            # The client has its answer: the application answers before it raises.
            log.exception("error %s in the HTTP door", request_id)


def _request_id(scope: Scope) -> str:
    """The client's own if it is fit to be logged, else a new one."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if REQUEST_ID.fullmatch(given) else secrets.token_hex(16)


def _limited(receive: Receive, body_s: float) -> Receive:
    """Refuses a body that is too large or too slow. Raises HTTPException."""
    deadline = time.monotonic() + body_s
    num_bytes = 0
    is_whole = False

    async def limited() -> Message:
        nonlocal num_bytes, is_whole
        if is_whole:
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {body_s:g} s") from None
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, f"a body has at most {MAX_BODY_BYTES} bytes")
        is_whole = not message.get("more_body", False)
        return message

    return limited
