"""The routes of the HTTP door."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import grpc
from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from gateway.answers import Arrival
from gateway.http.answering import Completions, Shape
from gateway.http.arrival import arrival_of, routes_for_callers
from gateway.http.bodies import ChatBody, CommonBody, CompletionBody, StreamOptions
from gateway.http.dialects import CHAT, COMPLETION, Dialect
from gateway.http.requests import chat_request, completion_request
from gateway.keys import Keys
from gateway.sequences import ServedModel
from gateway.verifiers import Verifiers
from paceline.metrics.endpoint import render
from paceline.metrics.reader import Metrics
from paceline.server import Refusal

Caller = Annotated[Arrival, Depends(arrival_of)]


def api_routes(completions: Completions, verifiers: Verifiers, keys: Keys) -> APIRouter:
    """Everything under /v1; each route asks for a key if there are keys."""
    router = APIRouter(prefix="/v1", route_class=routes_for_callers(keys))

    @router.post("/chat/completions")
    async def create_chat_completion(body: ChatBody, request: Request, caller: Caller) -> Response:
        wanted = chat_request(body, request.state.request_id)
        return completions.response(wanted, caller, _shape(CHAT, body))

    @router.post("/completions")
    async def create_completion(body: CompletionBody, request: Request, caller: Caller) -> Response:
        wanted = completion_request(body, request.state.request_id)
        return completions.response(wanted, caller, _shape(COMPLETION, body))

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(model) for model in verifiers.models()]}

    @router.get("/models/{name:path}")
    async def get_model(name: str) -> dict[str, Any]:
        for model in verifiers.models():
            if model.name == name:
                return _model(model)
        raise Refusal(grpc.StatusCode.NOT_FOUND, "no such model")

    return router


def health_routes(is_ready: Callable[[], bool]) -> APIRouter:
    """For probes, which have no key."""
    router = APIRouter()

    @router.get("/health")
    async def get_health() -> Response:
        if is_ready():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "not ready"}, 503)

    return router


def metrics_routes(metrics: Metrics, keys: Keys) -> APIRouter:
    """The page for Prometheus, as on its own port; for operators if there are keys."""
    router = APIRouter(route_class=routes_for_callers(keys), include_in_schema=False)

    @router.get("/metrics")
    async def get_metrics(request: Request, caller: Caller) -> Response:
        if not caller.tenant.is_operator:
            raise Refusal(grpc.StatusCode.PERMISSION_DENIED, "this key is no operator's")
        accept = request.headers.get("accept", "")
        body, kind = await asyncio.to_thread(render, metrics.registry, accept)
        return Response(body, headers={"Content-Type": kind})

    return router


def _shape(dialect: Dialect, body: CommonBody) -> Shape:
    options = body.stream_options or StreamOptions()
    return Shape(
        dialect,
        is_stream=bool(body.stream),
        with_usage=bool(options.include_usage),
        with_running_usage=bool(options.continuous_usage_stats),
        is_padded=options.include_obfuscation is not False,
    )


def _model(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        # The dialect wants a time; a model has none here.
        "created": 0,
        "owned_by": "paceline",
        "max_model_len": model.max_context,
        "paceline": {
            "model_fingerprint": model.model_fingerprint,
            "vocab_size": model.vocab_size,
            "max_draft_tokens": model.max_draft_tokens,
            "numerics": model.numerics,
        },
    }
