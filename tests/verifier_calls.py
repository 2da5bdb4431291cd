"""Asking a verifier itself, as a gateway does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.codec import params_to_pb
from paceline.params import SamplingParams, Speculation
from paceline.server import open_channel
from paceline.v1 import tokens_pb2, verifier_pb2, verifier_pb2_grpc


@dataclass
class Generated:
    token_ids: list[int]
    final: verifier_pb2.Final


@contextlib.asynccontextmanager
async def verifier_stub(address: str) -> AsyncIterator[Any]:
    async with open_channel(address) as channel:
        yield verifier_pb2_grpc.VerifierServiceStub(channel)


async def generate(
    stub: Any,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    generated: Sequence[int] = (),
    speculation: Speculation = Speculation.FIXED,
    deadline_s: float = 20.0,
) -> Generated:
    """The output tokens of one sequence, those that are given as `generated` left out."""
    opening = verifier_pb2.Open(
        token_ids=prompt,
        generated_token_ids=generated,
        params=params_to_pb(params),
        seed=seed,
        draft=tokens_pb2.DraftPolicy(speculation=int(speculation)),
    )
    token_ids: list[int] = []
    final = None
    async with asyncio.timeout(deadline_s):
        call = stub.Generate()
        await call.write(verifier_pb2.VerifierGenerateRequest(open=opening))
        async for response in call:
            token_ids += response.tokens.token_ids
            final = response.final if response.HasField("final") else None
    assert final is not None, "the answer has no end"
    return Generated(token_ids, final)
