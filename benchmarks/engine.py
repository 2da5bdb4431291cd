"""How fast the engine is, as ratios measured in one run: `make bench-engine`.

Our side is a real verifier process asked over gRPC, with exact numerics; transformers runs the same
weights with the same threads in this process. Sides take turns, medians are reported. The last line
is JSON: plain_vs_transformers (one stream, tokens per second), batch8_vs_single, batch16_vs_single,
rows8_vs_rows1 (time of a step), overhead_share (of a token's time at the client, what is not the
target's forward; at one stream and at 8), warm_ttft_vs_cold, worst_gap_vs_step (4 streams while a
long prompt comes in), rss_kb_per_request, ready_s (from start to ready, caches filled). The table
also has transformers' own prompt lookup and assisted generation, and the engines of other
environments that are named (peers.py).
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "20000")

import itertools

import torch
from peers import Peer, PeerError, commands, opened
from services import service
from transformers import AutoTokenizer
from transformers_side import Transformers

from paceline.codec import params_to_pb
from paceline.model.engine import LanguageModel, Rows
from paceline.model.load import EMBEDDED, embedded_gguf, load_model, resolve
from paceline.params import SamplingParams, Speculation
from paceline.server import open_channel
from paceline.v1 import tokens_pb2, verifier_pb2, verifier_pb2_grpc

PROMPTS = Path(__file__).parent / "prompts.jsonl"
THREADS = 2


class Side:
    """A verifier, asked for plain answers of exact length."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self._serial = 0

    async def answer(self, prompt: Sequence[int], num_tokens: int, tenant: str = "") -> list[float]:
        """When each token came, in seconds from the request on."""
        opening = verifier_pb2.Open(
            token_ids=prompt,
            params=params_to_pb(
                SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
            ),
            draft=tokens_pb2.DraftPolicy(speculation=int(Speculation.OFF)),
            tenant=tenant,
        )
        start = time.perf_counter()
        times: list[float] = []
        call = self._stub.Generate()
        await call.write(verifier_pb2.VerifierGenerateRequest(open=opening))
        async for response in call:
            times += [time.perf_counter() - start] * len(response.tokens.token_ids)
        assert len(times) == num_tokens
        return times

    async def rate(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Tokens per second of all answers together, from the last first token to the end."""
        answers = await asyncio.gather(*(self.answer(p, num_tokens) for p in prompts))
        begin, end = max(times[0] for times in answers), max(times[-1] for times in answers)
        counted = sum(sum(begin < t <= end for t in times) for times in answers)
        return counted / (end - begin)

    async def overhead(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """Share of the clients' time that is not the target's forward."""
        before = await self._stub.GetStatus(verifier_pb2.GetStatusRequest())
        start = time.perf_counter()
        await asyncio.gather(*(self.answer(p, num_tokens) for p in prompts))
        passed_us = (time.perf_counter() - start) * 1e6
        after = await self._stub.GetStatus(verifier_pb2.GetStatusRequest())
        return 1.0 - (after.forward_us - before.forward_us) / passed_us

    async def first_token_s(self, prompt: Sequence[int], *, warm: bool) -> float:
        """Time to the first token; a tenant of its own finds nothing in the cache."""
        if not warm:
            self._serial += 1
        return (await self.answer(prompt, 1, f"tenant-{self._serial}"))[0]

    async def worst_gap(self, prompts: Sequence[Sequence[int]], long: Sequence[int]) -> float:
        """The longest pause of 4 streams while a long prompt comes in, in their median steps."""

        async def arrive() -> None:
            await asyncio.sleep(1.0)
            self._serial += 1
            await self.answer(long, 2, f"tenant-{self._serial}")

        *answers, _ = await asyncio.gather(*(self.answer(p, 80) for p in prompts[:4]), arrive())
        gaps = [b - a for times in answers for a, b in itertools.pairwise(times)]
        return max(gaps) / statistics.median(gaps)

    async def growth_kb(self, num_requests: int) -> float:
        """Memory that the service keeps per request, after a warm-up, in kB."""
        generator = random.Random(0)

        async def ask(count: int) -> None:
            for _ in range(count // 8):
                prompts = [generator.choices(range(1000, 40000), k=40) for _ in range(8)]
                await asyncio.gather(*(self.answer(prompt, 2) for prompt in prompts))

        await ask(num_requests // 2)
        before = _children_rss_kb()
        await ask(num_requests)
        return (_children_rss_kb() - before) / num_requests


def _children_rss_kb() -> int:
    pid = os.getpid()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = [
        line for child in children for line in Path(f"/proc/{child}/status").read_text().split("\n")
    ]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def step_ms(model: LanguageModel, prompt: Sequence[int], num_rows: int) -> float:
    cache = model.new_cache()
    model.forward([Rows(cache, prompt, 0)])
    start = time.perf_counter()
    for _ in range(5):
        model.forward([Rows(cache, prompt[:num_rows], num_rows)])
        cache.rollback(len(prompt))
    cache.free()
    return (time.perf_counter() - start) * 200


def prompts_of(folder: Path) -> tuple[list[list[int]], list[int]]:
    """Token ids of short prompts, and of one of the `support` prompts with their long policy."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    short: list[list[int]] = []
    long: list[int] = []
    for line in PROMPTS.read_text().splitlines():
        entry = json.loads(line)
        text = tokenizer.apply_chat_template(
            entry["messages"], tokenize=False, add_generation_prompt=True
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if entry["category"] == "support":
            long = max(long, ids, key=len)
        else:
            short.append(ids[:200])
    return short[:16], long


async def measure(
    address: str,
    folder: Path,
    peers: Sequence[Peer],
    rounds: int,
    num_tokens: int,
    num_requests: int,
) -> dict[str, Any]:
    short, long = prompts_of(folder)
    theirs = Transformers(folder)
    model = load_model(EMBEDDED, max_sequences=2, kv_tokens=4096)
    rows: dict[str, list[float]] = {}
    start = time.monotonic()

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)
        passed_s = time.monotonic() - start
        print(f"\r{passed_s:5.0f} s  {name:44s}", end="", file=sys.stderr, flush=True)

    async with open_channel(address) as channel:
        ours = Side(verifier_pb2_grpc.VerifierServiceStub(channel))
        await ours.rate(short, 4)
        theirs.rate(short[0], 4)
        for index in range(rounds):
            prompt = short[index % len(short)]
            single = await ours.rate([prompt], num_tokens)
            plain = theirs.rate(prompt, num_tokens)
            note("tokens/s, one stream", single)
            note("tokens/s, transformers", plain)
            note("plain_vs_transformers", single / plain)
            lookup = theirs.rate(prompt, num_tokens, prompt_lookup_num_tokens=8)
            note("tokens/s, transformers with prompt lookup", lookup)
            note("tokens/s, 8 at once", eight := await ours.rate(short[:8], num_tokens))
            for peer in peers:
                note(f"tokens/s, {peer.name}", peer.rate([prompt], num_tokens))
                note(f"tokens/s, {peer.name}, 8 at once", peer.rate(short[:8], num_tokens))
            note("batch8_vs_single", eight / single)
            note("batch16_vs_single", await ours.rate(short[:16], num_tokens) / single)
            note("step of 1 row, ms", one := step_ms(model, prompt, 1))
            note("rows8_vs_rows1", step_ms(model, prompt, 8) / one)
            note("overhead_share", await ours.overhead([prompt], num_tokens))
            note("overhead_share_8", await ours.overhead(short[:8], num_tokens))
            cold = await ours.first_token_s(long, warm=False)
            note("time to first token, cold, ms", cold * 1e3)
            note("warm_ttft_vs_cold", await ours.first_token_s(long, warm=True) / cold)
            note("worst_gap_vs_step", await ours.worst_gap(short, long))
        note("rss_kb_per_request", await ours.growth_kb(num_requests))
        note(
            "tokens/s, transformers assisted by itself",
            theirs.rate(short[0], num_tokens, assistant_model=theirs.as_assistant),
        )
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return {name: values for name, values in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="times that the sides take turns")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each answer")
    parser.add_argument("--requests", type=int, default=2000, help="requests for memory growth")
    parser.add_argument("--openvino", metavar="PYTHON", help="compare with its openvino-genai")
    parser.add_argument("--vllm", metavar="PYTHON", help="compare with its vllm, a build for CPUs")
    parser.add_argument("--llama-cpp", metavar="BINARY", help="compare with llama-batched-bench")
    parser.add_argument("--gguf", metavar="FILE", help="weights of OpenVINO GenAI and llama.cpp")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    print("preparing the model and a first start, which fills the caches", file=sys.stderr)
    folder = resolve(EMBEDDED)
    started = commands(
        openvino=options.openvino,
        vllm=options.vllm,
        llama_cpp=options.llama_cpp,
        gguf=options.gguf or str(embedded_gguf()),
        folder=str(folder),
        threads=THREADS,
    )
    flags = ["-m", "verifier_service", "--port=0", f"--threads={THREADS}", "--numerics=exact"]
    with service(*flags):
        pass
    begin = time.perf_counter()
    try:
        with service(*flags) as address:
            ready_s = time.perf_counter() - begin
            with opened(started) as peers:
                sizes = options.rounds, options.tokens, options.requests
                figures = asyncio.run(measure(address, folder, peers, *sizes))
    except PeerError as error:
        raise SystemExit(f"benchmarks/engine.py: {error}") from None
    figures["ready_s"] = [ready_s]
    print(f"{'':44s}{'median':>9s}{'least':>9s}{'most':>9s}")
    for name, values in figures.items():
        print(f"{name:44s}{statistics.median(values):9.3f}{min(values):9.3f}{max(values):9.3f}")
    print(
        json.dumps(
            {
                name: round(statistics.median(values), 3)
                for name, values in figures.items()
                if " " not in name
            }
        )
    )


if __name__ == "__main__":
    main()
