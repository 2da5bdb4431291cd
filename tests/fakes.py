"""A tiny byte-level tokenizer, a scripted VerifierService, and a gateway in front of it."""

import asyncio
import hashlib
import json
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
from opentelemetry.sdk.trace import TracerProvider
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gateway.config import GatewaySettings
from gateway.gateway import Gateway
from paceline import telemetry
from paceline.codec import round_to_pb
from paceline.rounds import FinishReason, RoundReport, TokenSource
from paceline.server import INTERNAL_MESSAGE_BYTES, Refusal, Refusals, Service, open_channel
from paceline.tls import TlsFiles
from paceline.v1 import gateway_pb2_grpc, tokens_pb2, verifier_pb2, verifier_pb2_grpc

SPECIAL_TOKENS = ("<|end|>", "<|im_start|>", "<|im_end|>")
EOS = 2
CHAT_TEMPLATE = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
DEADLINE_S = 5.0
FIRST_ROUND_UNIX_NANOS = 1_800_000_000_000_000_000


def tiny_tokenizer() -> Tokenizer:
    """Every byte is a token, and so are some pairs, of which some end inside a character.

    One of those ends a character and begins the next: no token boundary need be a whole one.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("Ġ", "w"),
        ("ð", "Ł"),
        ("¥", "æ"),
        ("Ċ", "Ċ"),
    ]
    vocab = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in SPECIAL_TOKENS])
    return tokenizer


def tokenizer_files(template: str = CHAT_TEMPLATE) -> dict[str, bytes]:
    return {
        "tokenizer.json": tiny_tokenizer().to_str().encode(),
        "chat_template.jinja": template.encode(),
        "tokenizer_config.json": json.dumps({"eos_token": "<|im_end|>"}).encode(),
    }


def ids_of(text: str) -> list[int]:
    return tiny_tokenizer().encode(text).ids


def digest_of(token_ids: Sequence[int]) -> bytes:
    return hashlib.sha256(struct.pack(f"<{len(token_ids)}I", *token_ids)).digest()


def round_of(number: int, num_tokens: int) -> RoundReport:
    """A round that delivers all but the last token from a block with one rejected token."""
    num_accepted = num_tokens - 1
    return RoundReport(
        round=number,
        num_drafted=num_accepted + 2 if num_accepted else 0,
        num_tested=num_accepted + 1 if num_accepted else 0,
        num_accepted=num_accepted,
        num_output=num_tokens,
        source=TokenSource.PROMPT_LOOKUP if num_accepted else TokenSource.UNSPECIFIED,
        wait_us=100,
        verify_us=900,
        start_unix_nanos=FIRST_ROUND_UNIX_NANOS + number * 1_000_000,
        batch_sequences=1,
        batch_rows=num_accepted + 3,
    )


class FakeVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """Answers every sequence with the same rounds; its attributes script what else it does."""

    def __init__(self, rounds: Sequence[Sequence[int]] = (), name: str = "tiny") -> None:
        self.rounds = [list(token_ids) for token_ids in rounds]
        self.name = name
        self.files = tokenizer_files()
        self.max_context = 4096
        self.eos_token_ids = [EOS]
        self.opens: list[Any] = []
        # How each sequence ended: "final", "end", "gone", "refused" or "cut".
        self.endings: list[str] = []
        self.refusal: Refusal | None = None
        self.with_final = True
        self.digest: bytes | None = None
        self.first_index = 0
        self.finish_reason: int | None = None
        # Pauses before this round until `released` is set.
        self.pause_before: int | None = None
        self.released = asyncio.Event()
        # Cuts the stream before this round, as a death does.
        self.dies_before: int | None = None
        # Answers no question about its status, or claims work and takes no step.
        self.freezes = False
        self.is_stuck = False
        self.num_steps = 0

    async def Generate(self, requests: Any, context: Any) -> None:
        async with Refusals(context):
            opening = (await context.read()).open
            self.opens.append(opening)
            if self.refusal:
                self.endings.append("refused")
                raise self.refusal
            told = asyncio.ensure_future(context.read())
            try:
                self.endings.append(await self._answer(opening, told, context))
            except asyncio.CancelledError:
                self.endings.append("gone")
                raise
            finally:
                told.cancel()

    async def _answer(self, opening: Any, told: "asyncio.Future[Any]", context: Any) -> str:
        start_index = self.first_index
        num_reported = opening.num_rounds
        for number, whole in enumerate(self.rounds, 1):
            # Of an answer that began elsewhere, what is missing.
            num_had = min(max(len(opening.generated_token_ids) - start_index, 0), len(whole))
            start_index += num_had
            token_ids = whole[num_had:]
            if not token_ids:
                continue
            if number == self.pause_before:
                released = asyncio.ensure_future(self.released.wait())
                await asyncio.wait({released, told}, return_when=asyncio.FIRST_COMPLETED)
                released.cancel()
            if told.done():
                return "gone" if told.result() is grpc.aio.EOF else "end"
            if number == self.dies_before:
                await context.abort(grpc.StatusCode.UNAVAILABLE)
            num_reported += 1
            report = round_of(num_reported, len(token_ids))
            tokens = verifier_pb2.Tokens(
                start_index=start_index,
                token_ids=token_ids,
                sources=[TokenSource.PROMPT_LOOKUP] * (len(token_ids) - 1) + [TokenSource.PLAIN],
                logprobs=[
                    tokens_pb2.TokenLogprobs(logprob=-index, top_token_ids=[5], top_logprobs=[-0.5])
                    for index in range(len(token_ids))
                ],
                round=round_to_pb(report),
            )
            if num_reported == opening.num_rounds + 1:
                tokens.prefill.CopyFrom(
                    tokens_pb2.PrefillReport(
                        queue_us=50,
                        prefill_us=450,
                        num_cached_tokens=2,
                        start_unix_nanos=FIRST_ROUND_UNIX_NANOS,
                    )
                )
            await context.write(verifier_pb2.VerifierGenerateResponse(tokens=tokens))
            start_index += len(token_ids)
        if not self.with_final:
            return "cut"
        ids = [token_id for token_ids in self.rounds for token_id in token_ids]
        reason: Any = FinishReason.STOP if ids[-1:] == [EOS] else FinishReason.LENGTH
        final = verifier_pb2.Final(
            finish_reason=self.finish_reason or reason,
            digest=digest_of(ids) if self.digest is None else self.digest,
        )
        await context.write(verifier_pb2.VerifierGenerateResponse(final=final))
        return "final"

    async def GetStatus(self, request: Any, context: Any) -> verifier_pb2.GetStatusResponse:
        if self.freezes:
            await asyncio.Event().wait()
        self.num_steps += 0 if self.is_stuck else 1
        return verifier_pb2.GetStatusResponse(num_running=1, num_steps=self.num_steps)

    async def GetModel(self, request: Any, context: Any) -> verifier_pb2.GetModelResponse:
        return verifier_pb2.GetModelResponse(
            name=self.name,
            model_fingerprint="m" * 64,
            tokenizer_fingerprint="t" * 64,
            vocab_size=tiny_tokenizer().get_vocab_size(),
            max_context=self.max_context,
            eos_token_ids=self.eos_token_ids,
            max_draft_tokens=8,
            numerics="exact",
        )

    async def GetTokenizer(
        self, request: Any, context: Any
    ) -> AsyncIterator[verifier_pb2.GetTokenizerResponse]:
        for name, data in self.files.items():
            for start in range(0, len(data), 1000):
                yield verifier_pb2.GetTokenizerResponse(file=name, data=data[start : start + 1000])


@asynccontextmanager
async def served(
    fake: FakeVerifier, port: int = 0, tls: TlsFiles | None = None
) -> AsyncIterator[tuple[str, Service]]:
    """The fake's address, while it is served."""
    service = Service(
        "paceline.v1.VerifierService",
        host="127.0.0.1",
        port=port,
        drain_s=0.0,
        message_bytes=INTERNAL_MESSAGE_BYTES,
        with_reflection=False,
        tls=tls,
    )
    verifier_pb2_grpc.add_VerifierServiceServicer_to_server(fake, service.server)
    address = await service.start()
    await service.set_serving()
    try:
        yield address, service
    finally:
        await service.server.stop(0)


@asynccontextmanager
async def gateway_for(
    *addresses: str, provider: TracerProvider | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, Any]]:
    """A gateway in front of these verifiers, and a stub of it.

    Unless settings say otherwise it has no HTTP, and an answer whose verifier was lost fails at
    once when no other is ready.
    """
    settings = {"http_host": "", "failover_wait_s": 0.0, **settings}
    gateway = Gateway(
        GatewaySettings(port=0, verifier=list(addresses), **settings),
        provider or telemetry.set_up("test"),
    )
    await gateway.start()
    channel = open_channel(gateway.address)
    try:
        yield gateway, gateway_pb2_grpc.GatewayServiceStub(channel)
    finally:
        await channel.close()
        await gateway.close()
        await gateway.service.server.stop(0)


@asynccontextmanager
async def gateway_with(
    fake: FakeVerifier, provider: TracerProvider | None = None, **settings: Any
) -> AsyncIterator[Any]:
    """The stub of a ready gateway in front of the fake."""
    async with (
        served(fake) as (address, _),
        gateway_for(address, provider=provider, **settings) as (gateway, stub),
    ):
        async with asyncio.timeout(DEADLINE_S):
            await gateway.wait_ready()
        yield stub


async def eventually(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds; fails after a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come to hold"
        await asyncio.sleep(0.005)
