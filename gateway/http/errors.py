"""Errors of the HTTP door: refusals -> status, headers and a body of the OpenAI shape. Pure.

Nothing that was sent is repeated, but for the name of an unknown field if it looks like one.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from gateway.http.bodies import field_names
from paceline.server import Refusal

CODES = grpc.StatusCode
# status, type, code
MEANINGS: Mapping[grpc.StatusCode, tuple[int, str, str | None]] = {
    CODES.INVALID_ARGUMENT: (400, "invalid_request_error", None),
    CODES.OUT_OF_RANGE: (400, "invalid_request_error", None),
    CODES.FAILED_PRECONDITION: (400, "invalid_request_error", "failed_precondition"),
    CODES.UNAUTHENTICATED: (401, "authentication_error", "invalid_api_key"),
    CODES.PERMISSION_DENIED: (403, "permission_error", "permission_denied"),
    CODES.NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
    CODES.ALREADY_EXISTS: (409, "invalid_request_error", "conflict"),
    CODES.ABORTED: (409, "invalid_request_error", "conflict"),
    CODES.RESOURCE_EXHAUSTED: (429, "rate_limit_error", "rate_limit_exceeded"),
    CODES.UNAVAILABLE: (503, "server_error", "overloaded"),
    CODES.DEADLINE_EXCEEDED: (504, "timeout_error", "deadline_exceeded"),
}
SERVER_ERROR = (500, "server_error", None)
# Fields of a request that the dialect calls otherwise.
OWN_NAMES = (
    ("params.num_logprobs", "top_logprobs"),
    ("params.mode", "paceline.mode"),
    ("params.", ""),
    ("workload", "paceline.workload"),
    ("timeout_ms", "paceline.timeout_ms"),
    ("draft.", "paceline."),
)
# Kinds of validation errors that say more than any other about the same body.
TELLING = ("extra_forbidden", "too_long")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as a client sees it."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def problem_of(refusal: Refusal, prompt_field: str) -> Problem:
    """A refusal in the dialect's words. `prompt_field` is what it calls the prompt."""
    status, kind, code = MEANINGS.get(refusal.code, SERVER_ERROR)
    message, param = refusal.message, None
    if refusal.violations:
        names = [own_name(v.field, prompt_field) for v in refusal.violations]
        param = names[0]
        told = zip(names, refusal.violations, strict=True)
        message = "; ".join(f"{name}: {v.description}" for name, v in told)
        if "exceeds the context" in message:
            code = "context_length_exceeded"
    elif refusal.code is CODES.NOT_FOUND:
        message, param = "no such model; GET /v1/models names those that are served", "model"
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(refusal.retry_after_s))
        headers["retry-after-ms"] = str(math.ceil(refusal.retry_after_s * 1000))
    return Problem(status, message, kind, param, code, headers)


def own_name(name: str, prompt_field: str) -> str:
    """What the dialect calls a field of a request."""
    for prompt in ("token_ids", "text", "chat.messages", "chat"):
        if name == prompt or name.startswith(f"{prompt}["):
            return prompt_field + name.removeprefix(prompt)
    for ours, theirs in OWN_NAMES:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def problem_of_validation(errors: Sequence[Mapping[str, Any]]) -> Problem:
    """The first field of a body that is wrong, of those that pydantic found."""
    # Of a union's branches, the one that got furthest.
    error = max(errors, key=lambda e: (e["type"] in TELLING, len(e["loc"])))
    param = _path(error["loc"][1:], is_unknown=error["type"] == "extra_forbidden")
    if error["type"] == "json_invalid":
        return bad_request("the body is not JSON")
    if param is None:
        return bad_request("the body must be a JSON object, with Content-Type: application/json")
    what = {
        "extra_forbidden": "unknown field",
        "missing": "is required",
    }.get(error["type"], str(error["msg"]))
    return Problem(400, f"{param}: {what}", "invalid_request_error", param)


def bad_request(message: str, status: int = 400) -> Problem:
    return Problem(status, message, "invalid_request_error")


def internal_problem(error_id: str) -> Problem:
    """Whatever went wrong here: the log has it under this id."""
    return Problem(500, f"internal error {error_id}", "server_error")


def _path(location: Sequence[int | str], *, is_unknown: bool) -> str | None:
    """Where in a body, as a.b[0].c; None for the body as a whole."""
    known = field_names()
    path = ""
    for number, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]" if path else ""
        elif part in known:
            path += f".{part}" if path else part
        elif is_unknown and number == len(location) - 1:
            # Anything else is more likely content than a name.
            shown = part if NAME.fullmatch(part) else "(a name that no field has)"
            path += f".{shown}" if path else shown
    return path or None
