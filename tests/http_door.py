"""A gateway with its HTTP door, in this process, in front of a scripted verifier."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fakes import DEADLINE_S, EOS, FakeVerifier, gateway_for, ids_of, served

from gateway.gateway import Gateway

TEXT = "hello 😀 world"
IDS = [*ids_of(TEXT), EOS]
HELLO = [{"role": "user", "content": "hello"}]


def fake_verifier() -> FakeVerifier:
    """Answers with TEXT in three rounds."""
    return FakeVerifier([IDS[:2], IDS[2:5], IDS[5:]])


@asynccontextmanager
async def open_door(
    fake: FakeVerifier | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, FakeVerifier, Any]]:
    """A ready gateway, its verifier, and its gRPC stub."""
    fake = fake or fake_verifier()
    settings = {"http_host": "127.0.0.1", **settings}
    async with served(fake) as (address, _), gateway_for(address, **settings) as (gateway, stub):
        async with asyncio.timeout(DEADLINE_S):
            await gateway.wait_ready()
        yield gateway, fake, stub


@asynccontextmanager
async def http_of(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://{gateway.http_address}"
    async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, trust_env=False) as client:
        yield client
