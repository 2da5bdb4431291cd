"""The HTTP door as one ASGI application: routes, errors of the dialect's shape, and the page."""

from collections.abc import Sequence
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from gateway.http.dialects import CHAT, COMPLETION
from gateway.http.envelope import Envelope
from gateway.http.errors import (
    Problem,
    bad_request,
    internal_problem,
    problem_of,
    problem_of_validation,
)
from gateway.http.page_files import page_routes
from paceline.params import FieldError
from paceline.server import Refusal

PAGE = Path(__file__).parents[1] / "page"
NO_PATH = "there is nothing at this path"
NO_METHOD = "this path does not take this method"


def http_app(routers: Sequence[APIRouter], page: Path = PAGE) -> ASGIApp:
    """The routes, and the files of the folder `page` below /."""
    app = FastAPI(
        title="Paceline",
        # Its pages would fetch scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # Traces are the gateway's own.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(Refusal, _on_refusal)
    app.add_exception_handler(FieldError, _on_field_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_error)
    app.router.routes.extend(page_routes(page))
    return Envelope(app)


async def _on_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    dialect = CHAT if request.url.path.endswith("/chat/completions") else COMPLETION
    return _answer(problem_of(error, dialect.prompt_field))


async def _on_field_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FieldError)
    return await _on_refusal(request, Refusal.invalid([error.violation]))


async def _on_validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(problem_of_validation(error.errors()))


async def _on_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: NO_PATH, 405: NO_METHOD}.get(error.status_code, error.detail)
    response = _answer(bad_request(message, error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _on_error(request: Request, _: Exception) -> Response:
    return _answer(internal_problem(request.state.request_id))


def _answer(problem: Problem) -> JSONResponse:
    return JSONResponse(problem.body, problem.status, headers=dict(problem.headers))
