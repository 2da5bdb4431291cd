"""`python -m mock_target`: a VerifierService whose target model is a hash. No torch.

Token i of an answer is a function of the prompt, the seed and i alone, so that two replicas agree
to the bit and a difference is a bug of those who carry the tokens.
"""

import argparse
import asyncio
import hashlib
import itertools
import signal
from collections.abc import Sequence
from typing import Any

from fakes import FakeVerifier, digest_of, round_of, served

from paceline.codec import params_from_pb, round_to_pb
from paceline.rounds import FinishReason, TokenSource
from paceline.server import Refusals
from paceline.v1 import tokens_pb2, verifier_pb2

# Ids of printable characters in the tokenizer of `fakes`.
FIRST_ID, NUM_IDS = 3, 90


def token(prompt: Sequence[int], seed: int, index: int) -> int:
    key = b"%d/%d/%s" % (seed, index, bytes(str(list(prompt)), "ascii"))
    return FIRST_ID + int.from_bytes(hashlib.blake2b(key, digest_size=4).digest()) % NUM_IDS


def answer(prompt: Sequence[int], seed: int, num_tokens: int) -> list[int]:
    return [token(prompt, seed, index) for index in range(num_tokens)]


class MockTarget(FakeVerifier):
    """Rounds of 1, 2 or 3 tokens, `step_s` apart."""

    def __init__(self, step_s: float) -> None:
        super().__init__(name="mock")
        self._step_s = step_s
        self._num_live = 0

    async def Generate(self, requests: Any, context: Any) -> None:
        async with Refusals(context):
            opening = (await context.read()).open
            told = asyncio.ensure_future(context.read())
            self._num_live += 1
            try:
                await self._decode(opening, told, context)
            finally:
                self._num_live -= 1
                told.cancel()

    async def _decode(self, opening: Any, told: "asyncio.Future[Any]", context: Any) -> None:
        prompt = tuple(opening.token_ids)
        ids = list(opening.generated_token_ids)
        num_tokens = params_from_pb(opening.params).max_tokens
        for number in itertools.count(opening.num_rounds + 1):
            if len(ids) >= num_tokens:
                break
            await asyncio.wait({told}, timeout=self._step_s)
            if told.done():
                return
            self.num_steps += 1
            start = len(ids)
            end = min(start + 1 + number % 3, num_tokens)
            ids += [token(prompt, opening.seed, index) for index in range(start, end)]
            tokens = verifier_pb2.Tokens(
                start_index=start,
                token_ids=ids[start:],
                sources=[TokenSource.PROMPT_LOOKUP] * (end - start - 1) + [TokenSource.PLAIN],
                round=round_to_pb(round_of(number, end - start)),
                prefill=tokens_pb2.PrefillReport() if number == 1 else None,
            )
            await context.write(verifier_pb2.VerifierGenerateResponse(tokens=tokens))
        reason: Any = FinishReason.LENGTH
        final = verifier_pb2.Final(finish_reason=reason, digest=digest_of(ids))
        await context.write(verifier_pb2.VerifierGenerateResponse(final=final))

    async def GetStatus(self, request: Any, context: Any) -> verifier_pb2.GetStatusResponse:
        return verifier_pb2.GetStatusResponse(num_running=self._num_live, num_steps=self.num_steps)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--step-ms", type=float, default=10.0)
    options = parser.parse_args()
    done = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, done.set)
    mock = MockTarget(options.step_ms / 1000)
    async with served(mock, options.port) as (address, service):
        print(f"READY verifier {address}", flush=True)
        await done.wait()
        await service.set_serving(False)
        while mock._num_live:
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main())
