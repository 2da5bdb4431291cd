"""Who may use the HTTP door, and how much of it: keys, limits of a tenant, TLS and roles."""

import ssl
from pathlib import Path

import grpc
import httpx
import pytest
from certificates import Certificates
from fakes import DEADLINE_S
from http_door import HELLO, http_of, open_door
from starlette.types import ASGIApp
from test_http_wire import CHAT, COMPLETIONS, error_of
from test_security_keys import add, bearer

from gateway.http.app import http_app
from gateway.http.routes import metrics_routes
from gateway.keys import Keys
from paceline.keys import new_key
from paceline.metrics import instruments
from paceline.metrics.reader import Metrics
from paceline.server import Refusal
from paceline.tls import TlsFiles
from paceline.v1 import gateway_pb2 as pb

BODY = {"messages": HELLO}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


async def test_every_route_of_the_api_asks_for_the_key(file: Path):
    key = add(file, "one")
    async with open_door(api_keys=str(file)) as (gateway, fake, _), http_of(gateway) as http:

        async def asked(headers: dict[str, str]) -> list[httpx.Response]:
            return [
                await http.post(CHAT, json=BODY, headers=headers),
                await http.post(CHAT, json=BODY | {"stream": True}, headers=headers),
                await http.post(COMPLETIONS, json={"prompt": "a"}, headers=headers),
                await http.get("/v1/models", headers=headers),
                await http.get("/v1/models/fake", headers=headers),
            ]

        for headers in ({}, dict(bearer(new_key()[0])), {"authorization": key}):
            for response in await asked(headers):
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                error = error_of(response)
                assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        # Whoever has no key learns nothing about the body either.
        assert (await http.post(CHAT, content=b"{")).status_code == 401
        assert not fake.opens
        assert (await http.get("/health")).status_code == 200
        known = await asked({"Authorization": f"Bearer {key}"})
    assert [response.status_code for response in known[:4]] == [200] * 4
    assert [opening.tenant for opening in fake.opens] == ["one"] * 3


async def test_a_tenant_has_one_limit_at_both_doors(file: Path):
    keys = {"one": add(file, "one", "--max-answers=1"), "two": add(file, "two")}
    async with open_door(api_keys=str(file)) as (gateway, fake, stub), http_of(gateway) as http:
        fake.pause_before = 2
        call = stub.Generate(pb.GenerateRequest(text="a"), metadata=bearer(keys["one"]))
        await call.read()
        over = await http.post(CHAT, json=BODY, headers=dict(bearer(keys["one"])))
        fake.pause_before = None
        other = await http.post(CHAT, json=BODY, headers=dict(bearer(keys["two"])))
        call.cancel()
    assert over.status_code == 429
    assert error_of(over)["code"] == "rate_limit_exceeded"
    assert int(over.headers["retry-after"]) >= 1
    assert other.status_code == 200


async def test_a_tenant_over_its_rate_is_told_when_to_come_again(file: Path):
    key = add(file, "one", "--tokens-per-s=1")
    async with open_door(api_keys=str(file)) as (gateway, _, stub), http_of(gateway) as http:
        first = await http.post(CHAT, json=BODY, headers=dict(bearer(key)))
        over = await http.post(CHAT, json=BODY, headers=dict(bearer(key)))
        call = stub.Generate(pb.GenerateRequest(text="a" * 300), metadata=bearer(key))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    assert (first.status_code, over.status_code) == (200, 429)
    # A bucket of a minute's tokens, less what was delivered; the next one asks for a full one.
    used = first.json()["usage"]["total_tokens"]
    assert used - 2 <= int(over.headers["retry-after"]) <= used
    at_grpc = Refusal.from_rpc_error(refused.value)
    assert at_grpc.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert at_grpc.retry_after_s == pytest.approx(used, abs=2)


async def test_the_page_of_metrics_is_for_operators(file: Path):
    keys = {"operator": add(file, "boss", "--operator"), "one": add(file, "one")}
    metrics = Metrics(instruments.GATEWAY)
    metrics.observe(instruments.REQUESTS_QUEUED, lambda: 5)
    guarded, open_to_all = (
        http_app([metrics_routes(metrics, Keys(path))]) for path in (str(file), "")
    )

    async def page(app: ASGIApp, **headers: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.get("/metrics", headers=headers)

    assert (await page(guarded)).status_code == 401
    assert (await page(guarded, **dict(bearer(keys["one"])))).status_code == 403
    seen = await page(guarded, **dict(bearer(keys["operator"])))
    assert seen.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "paceline_requests_queued 5.0" in seen.text
    assert (await page(open_to_all, accept="application/openmetrics-text")).text.endswith("# EOF\n")
    metrics.close()


async def test_over_tls_a_certificate_with_another_role_is_refused(tmp_path: Path):
    certificates = Certificates(tmp_path)
    door = certificates.issue("door", "127.0.0.1")
    settings = {"tls_cert": door.cert, "tls_key": door.key, "tls_client_ca": certificates.ca}
    async with open_door(**settings) as (gateway, fake, _):

        async def post(caller: TlsFiles | None) -> httpx.Response:
            context = ssl.create_default_context(cafile=certificates.ca)
            if caller:
                context.load_cert_chain(caller.cert, caller.key)
            url = f"https://{gateway.http_address}"
            async with httpx.AsyncClient(
                base_url=url, verify=context, timeout=DEADLINE_S, trust_env=False
            ) as http:
                return await http.post(CHAT, json=BODY)

        with pytest.raises(httpx.TransportError):
            await post(None)
        refused = await post(certificates.role("drafter"))
        assert not fake.opens
        taken = [await post(certificates.client()), await post(certificates.role("operator"))]
    assert refused.status_code == 403
    assert error_of(refused)["code"] == "permission_denied"
    assert [response.status_code for response in taken] == [200, 200]
