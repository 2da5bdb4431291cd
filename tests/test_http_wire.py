"""The HTTP door on the wire: frames, headers, statuses, limits, and clients that go away."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from fakes import DEADLINE_S, eventually, gateway_for
from fastapi import APIRouter
from http_door import HELLO, IDS, TEXT, http_of, open_door

from gateway.config import GatewaySettings
from gateway.gateway import Gateway
from gateway.http import sse
from gateway.http.app import http_app
from gateway.http.envelope import MAX_BODY_BYTES, Envelope
from paceline import telemetry
from paceline.server import Refusal

CANARY = "canary-7f3a"
PORTS = [(7000, None), (0, None), (7000, 9), (7000, 0)]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    assert CANARY not in response.text
    return body["error"]


async def test_a_stream_is_data_lines_and_ends_with_done():
    body = {"messages": HELLO, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    async with open_door() as (gateway, _, _), http_of(gateway) as http:
        response = await http.post(CHAT, json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert not [name for name in response.headers if name.startswith("access-control")]
    frames = response.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames[:-1])
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["object"] == "chat.completion.chunk"
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks[1:]]
    assert counts == [2, 5, len(IDS), len(IDS)]


async def test_a_completion_streams_text():
    async with open_door() as (gateway, _, _), http_of(gateway) as http:
        response = await http.post(COMPLETIONS, json={"prompt": ["hi"], "stream": True})
    chunks = [json.loads(f.removeprefix("data: ")) for f in response.text.split("\n\n")[:-2]]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == TEXT
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_a_quiet_stream_is_kept_alive():
    sent: list[Any] = []
    pinged = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body") == sse.PING:
            pinged.set()

    async with asyncio.timeout(DEADLINE_S), sse.event_stream(send, ping_s=0.005) as stream:
        await stream.write(b"data: 1\n\n")
        await pinged.wait()
    assert [message["type"] for message in sent[:2]] == ["http.response.start", sent[1]["type"]]
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_request_ids_go_in_and_out():
    async with open_door() as (gateway, fake, _), http_of(gateway) as http:
        own = await http.post(CHAT, json={"messages": HELLO}, headers={"x-request-id": "mine-1"})
        unfit = await http.post(CHAT, json={"messages": HELLO}, headers={"x-request-id": "a b"})
    assert own.headers["x-request-id"] == fake.opens[0].request_id == "mine-1"
    assert unfit.headers["x-request-id"] == fake.opens[1].request_id
    assert len(fake.opens[1].request_id) == 32


REFUSED: list[tuple[str, Any, str, str]] = [
    (CHAT, {"messages": HELLO, "temprature": 1}, "temprature", "unknown field"),
    (CHAT, {"messages": HELLO, CANARY: 1}, "(a name that no field has)", "unknown field"),
    (CHAT, {"messages": [{**HELLO[0], "age": 3}]}, "messages[0].age", "unknown field"),
    (CHAT, {"messages": HELLO, "paceline": {"speed": 1}}, "paceline.speed", "unknown field"),
    (CHAT, {}, "messages", "is required"),
    (CHAT, {"messages": []}, "messages", "no messages"),
    (CHAT, {"messages": HELLO * 1025}, "messages", "at most 1024"),
    (CHAT, {"messages": [{"role": CANARY, "content": ""}]}, "messages[0].role", "one of"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "'text'",
    ),
    (
        CHAT,
        {"messages": [{**HELLO[0], "tool_calls": [{}]}]},
        "messages[0].tool_calls",
        "not supported",
    ),
    (CHAT, {"messages": HELLO, "tools": [{}]}, "tools", "not supported"),
    (
        CHAT,
        {"messages": HELLO, "response_format": {"type": "json_object"}},
        "response_format",
        "not supported",
    ),
    (CHAT, {"messages": HELLO, "temperature": CANARY}, "temperature", "valid number"),
    (CHAT, {"messages": HELLO, "n": 0}, "n", "greater"),
    (CHAT, {"messages": HELLO, "n": 9}, "n", "at most 8"),
    (CHAT, {"messages": HELLO, "seed": -1}, "seed", "greater"),
    (CHAT, {"messages": HELLO, "max_tokens": 2**32}, "max_tokens", "less"),
    (CHAT, {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", ""),
    (CHAT, {"messages": HELLO, "top_logprobs": 1}, "top_logprobs", "logprobs: true"),
    (CHAT, {"messages": HELLO, "stream_options": {}}, "stream_options", "stream: true"),
    (CHAT, {"messages": HELLO, "logit_bias": {CANARY: 1}}, "logit_bias", "token ids"),
    (CHAT, {"messages": HELLO, "stop": ["x"] * 17}, "stop", "at most 16"),
    (CHAT, {"messages": HELLO, "stop": [""]}, "stop[0]", "bytes"),
    (
        CHAT,
        {"messages": HELLO, "paceline": {"workload": "x" * 257}},
        "paceline.workload",
        "at most 256",
    ),
    (CHAT, {"messages": HELLO, "paceline": {"generated_token_ids": [1]}}, "seed", "is needed"),
    (
        CHAT,
        {
            "messages": HELLO,
            "seed": 1,
            "max_tokens": 1,
            "paceline": {"generated_token_ids": [1, 2]},
        },
        "paceline.generated_token_ids",
        "more tokens",
    ),
    (COMPLETIONS, {"prompt": []}, "prompt", "no messages"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt", "at most 1"),
    (COMPLETIONS, {"prompt": "a", "echo": True}, "echo", "not supported"),
    (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of", "not supported"),
    (COMPLETIONS, {"prompt": "a" * (2**20 + 1)}, "prompt", "at most"),
]


async def test_a_field_that_cannot_be_honoured_is_refused_by_name():
    async with open_door() as (gateway, fake, _), http_of(gateway) as http:
        for path, body, param, told in REFUSED:
            response = await http.post(path, json=body)
            assert response.status_code == 400, param
            error = error_of(response)
            assert (error["param"], error["type"]) == (param, "invalid_request_error")
            assert told in error["message"]
    assert not fake.opens


async def test_what_asks_for_nothing_is_taken():
    body = {
        "messages": [{**HELLO[0], "name": None, "tool_calls": []}],
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "service_tier": "auto",
        "metadata": {"a": "b"},
        "store": True,
        "temperature": None,
        "stop": None,
    }
    async with open_door() as (gateway, _, _), http_of(gateway) as http:
        response = await http.post(CHAT, json=body)
    assert response.status_code == 200


STATUSES = [
    ("INVALID_ARGUMENT", 400, None),
    ("UNAUTHENTICATED", 401, "invalid_api_key"),
    ("NOT_FOUND", 404, "model_not_found"),
    ("RESOURCE_EXHAUSTED", 429, "rate_limit_exceeded"),
    ("ABORTED", 500, "aborted"),
    ("UNAVAILABLE", 503, "overloaded"),
    ("DEADLINE_EXCEEDED", 504, "deadline_exceeded"),
    ("DATA_LOSS", 500, None),
]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_refusal_has_its_status_even_for_a_stream(is_stream: bool):
    async with open_door() as (gateway, fake, _), http_of(gateway) as http:
        for code, status, kind in STATUSES:
            fake.refusal = Refusal(grpc.StatusCode[code], "not now", retry_after_s=1.5)
            response = await http.post(CHAT, json={"messages": HELLO, "stream": is_stream})
            assert response.status_code == status
            assert error_of(response)["code"] == kind
            hints = (response.headers["retry-after"], response.headers["retry-after-ms"])
            assert hints == ("2", "1500")


async def test_a_full_gateway_says_when_to_come_again_and_a_draining_one_that_it_goes():
    async with open_door(max_requests=1) as (gateway, fake, _), http_of(gateway) as http:
        assert (await http.get("/health")).status_code == 200
        too_many = await http.post(CHAT, json={"messages": HELLO, "n": 2})
        await gateway.drain()
        draining = await http.post(CHAT, json={"messages": HELLO})
        assert (await http.get("/health")).status_code == 503
    assert (too_many.status_code, draining.status_code) == (429, 503)
    assert int(too_many.headers["retry-after"]) >= 1
    assert error_of(draining)["message"] == "the gateway is draining"
    assert not fake.opens


async def test_without_a_verifier_nothing_is_ready():
    door = gateway_for("127.0.0.1:1", http_host="127.0.0.1")
    async with door as (gateway, _), http_of(gateway) as http:
        health = await http.get("/health")
        answer = await http.post(CHAT, json={"messages": HELLO})
        models = await http.get("/v1/models")
    assert (health.status_code, answer.status_code) == (503, 503)
    assert error_of(answer)["code"] == "overloaded"
    assert models.json() == {"object": "list", "data": []}


async def test_a_failure_amid_a_stream_is_an_error_event_and_no_done():
    async with open_door() as (gateway, fake, _), http_of(gateway) as http:
        fake.digest = b"wrong"
        response = await http.post(CHAT, json={"messages": HELLO, "stream": True})
    *chunks, last, end = response.text.split("\n\n")
    assert response.status_code == 200
    assert end == ""
    assert len(chunks) >= 3
    event, data = last.split("\n")
    assert event == "event: error"
    error = json.loads(data.removeprefix("data: "))["error"]
    assert "differs from what was generated" in error["message"]
    assert error["type"] == "server_error"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_goes_away_ends_its_sequence(is_stream: bool):
    async with open_door(max_requests=1) as (gateway, fake, _), http_of(gateway) as http:
        fake.pause_before = 2
        body = {"messages": HELLO, "stream": is_stream}
        if is_stream:
            async with http.stream("POST", CHAT, json=body) as response:
                await anext(response.aiter_lines())
        else:
            asking = asyncio.create_task(http.post(CHAT, json=body))
            await eventually(lambda: len(fake.opens) == 1)
            asking.cancel()
        await eventually(lambda: len(fake.endings) == 1)
        assert fake.endings[0] in ("end", "gone")
        fake.pause_before = None
        again = await http.post(CHAT, json={"messages": HELLO})
        assert again.status_code == 200, "the place is free again"


NO_BODIES = [
    (b"", "application/json"),
    (b"{", "application/json"),
    (b"\xff\xfe", "application/json"),
    (b"[" * 100_000, "application/json"),
    (b'"canary-7f3a"', "application/json"),
    (b'{"messages": ' + b"9" * 5000 + b"}", "application/json"),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "application/json"),
    (b'{"messages": [{"role": "user", "content": "canary-7f3a"}]}', "text/plain"),
]


async def test_what_is_no_json_object_is_refused():
    async with open_door() as (gateway, fake, _), http_of(gateway) as http:
        for content, kind in NO_BODIES:
            response = await http.post(CHAT, content=content, headers={"content-type": kind})
            assert response.status_code == 400
            assert error_of(response)["type"] == "invalid_request_error"
    assert not fake.opens


async def test_a_body_has_a_size_and_a_time():
    async with open_door() as (gateway, _, _), http_of(gateway) as http:
        headers = {"content-type": "application/json"}
        large = await http.post(CHAT, content=b" " * (MAX_BODY_BYTES + 1), headers=headers)
    assert large.status_code == 413
    assert error_of(large)["type"] == "invalid_request_error"

    router = APIRouter()

    @router.post("/read")
    async def read(body: dict[str, int]) -> dict[str, int]:
        return body

    async def slow() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    app = http_app([router])
    assert isinstance(app, Envelope)
    transport = httpx.ASGITransport(Envelope(app, body_s=0.02))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        late = await http.post(
            "/read", content=slow(), headers={"content-type": "application/json"}
        )
    assert late.status_code == 408


async def test_paths_and_methods_that_are_not_there_have_errors_of_the_same_shape():
    async with open_door() as (gateway, _, _), http_of(gateway) as http:
        nowhere = await http.get(f"/{CANARY}")
        method = await http.get(CHAT)
        preflight = await http.options(CHAT, headers={"origin": "http://elsewhere"})
        model = await http.get(f"/v1/models/{CANARY}")
        root = await http.get("/")
    assert [r.status_code for r in (nowhere, method, preflight, model)] == [404, 405, 405, 404]
    for response in (nowhere, method, preflight, model):
        assert error_of(response)["message"]
    assert error_of(model)["code"] == "model_not_found"
    assert root.headers["content-type"] == "text/html; charset=utf-8"


async def test_a_page_is_served_from_its_folder(tmp_path: Path):
    (tmp_path / "index.html").write_text("<p>page</p>")
    app = http_app([], page=tmp_path)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t") as http:
        assert (await http.get("/")).text == "<p>page</p>"
        assert (await http.get("/missing.js")).status_code == 404


async def test_an_exceptions_text_stays_here(caplog: pytest.LogCaptureFixture):
    router = APIRouter()

    @router.get("/broken")
    async def broken() -> None:
        raise RuntimeError(CANARY)

    transport = httpx.ASGITransport(http_app([router]))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        response = await http.get("/broken")
    assert response.status_code == 500
    request_id = response.headers["x-request-id"]
    assert error_of(response)["message"] == f"internal error {request_id}"
    assert f"error {request_id}" in caplog.text


async def test_the_http_door_may_be_left_out_and_a_port_that_is_taken_is_named():
    async with gateway_for("127.0.0.1:1", http_host="127.0.0.1") as (first, _):
        taken = int(first.http_address.rsplit(":", 1)[1])
        second = Gateway(GatewaySettings(port=0, http_port=taken), telemetry.set_up("test"))
        with pytest.raises(SystemExit, match="choose another --http-port"):
            await second.start()
        await second.close()
        await second.service.server.stop(0)
    async with gateway_for("127.0.0.1:1", http_host="") as (without, _):
        assert without.http_address == ""


async def test_a_second_gateway_goes_on_without_the_default_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(GatewaySettings, "wanted_http_port", taken.getsockname()[1])
        async with gateway_for("127.0.0.1:1", http_host="127.0.0.1") as (second, _):
            assert second.address
            assert second.http_address == ""
    assert "no HTTP door" in caplog.text
    monkeypatch.undo()
    wanted = [GatewaySettings(port=p, http_port=h).wanted_http_port for p, h in PORTS]
    assert wanted == [8000, 0, 9, 0]
