"""Nothing that a drafter sends can fail a request or change a token of it."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

import grpc
import pytest
import pytest_asyncio
import torch
from processes import Process
from scripted_drafter import (
    Followed,
    HangUp,
    Said,
    ScriptedDrafter,
    honestly,
    lasting_port,
    scripted,
    welcome,
)
from tiny import VOCAB_SIZE, byte_tokenizer, save_tiny_llama
from verifier_calls import Generated, generate, verifier_stub

from paceline.codec import distribution_to_pb
from paceline.params import SamplingMode, SamplingParams, Speculation
from paceline.rejection import DraftDistribution, draw
from paceline.server import INTERNAL_MESSAGE_BYTES
from paceline.v1 import drafter_pb2, tokens_pb2, verifier_pb2

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = list(b"Say something, and say it again and again.")
MAX_TOKENS = 32
MAX_DRAFT_TOKENS = 8
DEADLINE_S = 20.0
LARGEST = 2**32 - 1
# What the verifier calls its vocabulary; the model's logits are padded beyond it.
KNOWN_IDS = byte_tokenizer().get_vocab_size()
# What a script says at once.
Lot = Callable[[Followed], Sequence[Said]]
# (temperature, seed): the scripted drafter tells answers apart by the seed.
REQUESTS = ((0.0, 1), (0.8, 2))


class Verifier:
    """The verifier process under attack, and what it answers without a drafter."""

    def __init__(self, stub, ports: dict[str, int]) -> None:
        self._stub = stub
        self.ports = ports
        self.plain: dict[SamplingMode, list[list[int]]] = {}

    async def prepare(self) -> None:
        for mode in SamplingMode:
            off = [await self.answer(*each, mode, speculation=Speculation.OFF) for each in REQUESTS]
            self.plain[mode] = [answer.token_ids for answer in off]
            assert all(len(token_ids) == MAX_TOKENS for token_ids in self.plain[mode])

    @property
    def truths(self) -> dict[int, list[int]]:
        coupled = self.plain[SamplingMode.COUPLED]
        return {
            seed: PROMPT + token_ids for (_, seed), token_ids in zip(REQUESTS, coupled, strict=True)
        }

    async def answer(
        self,
        temperature: float,
        seed: int,
        mode: SamplingMode,
        *,
        max_tokens: int = MAX_TOKENS,
        speculation: Speculation = Speculation.FIXED,
    ) -> Generated:
        params = SamplingParams(
            mode=mode, temperature=temperature, max_tokens=max_tokens, ignore_eos=True
        )
        return await generate(self._stub, PROMPT, params, seed=seed, speculation=speculation)

    async def check(
        self,
        mode: SamplingMode = SamplingMode.COUPLED,
        max_tokens: int = MAX_TOKENS,
        at_once: int = 1,
    ) -> int:
        """Whatever drafts, the tokens are plain decoding's. How many the drafter had guessed."""
        accepted = 0
        for request, plain in zip(REQUESTS, self.plain[mode], strict=True):
            copies = [self.answer(*request, mode, max_tokens=max_tokens) for _ in range(at_once)]
            for answer in await asyncio.gather(*copies):
                assert answer.token_ids == plain[:max_tokens]
                accepted += answer.final.totals.num_accepted
        return accepted

    async def status(self, name: str = "main") -> verifier_pb2.DrafterStatus:
        status = await self._stub.GetStatus(verifier_pb2.GetStatusRequest())
        [found] = [d for d in status.drafters if d.address.endswith(f":{self.ports[name]}")]
        return found

    async def is_idle(self) -> bool:
        status = await self._stub.GetStatus(verifier_pb2.GetStatusRequest())
        return status.num_running + status.num_waiting + status.kv_blocks_used == 0

    async def until(self, condition, name: str = "main") -> verifier_pb2.DrafterStatus:
        """The link's status once it fulfils the condition."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition(status := await self.status(name)):
                await asyncio.sleep(0.01)
        return status

    @contextlib.asynccontextmanager
    async def facing(self, make_script=lambda: honestly, **how):
        """A scripted drafter in its place, connected: the link's status at that moment."""
        before = await self.until(lambda link: link.state == "connecting")
        async with scripted(ScriptedDrafter(make_script, self.truths, **how), self.ports["main"]):
            yield await self.until(
                lambda link: link.state == "ready" and link.num_connects > before.num_connects
            )


HANDSHAKES = {
    "another version": [welcome(protocol_version=2)],
    "another tokenizer": [welcome(tokenizer_fingerprint="f" * 64)],
    "a refusal": [HangUp(grpc.StatusCode.FAILED_PRECONDITION)],
    "no welcome": [],
    "no kind of response": [drafter_pb2.DraftResponse()],
    "blocks": [drafter_pb2.DraftResponse(blocks=drafter_pb2.Blocks())],
    "no message": [b"\xff\xff"],
    "the end": [HangUp()],
}
# What the status says of those that are not tried again soon.
REFUSED = {
    "another version": "protocol version 2",
    "another tokenizer": "f" * 64,
    "a refusal": "as scripted",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def handshakes():
    async with contextlib.AsyncExitStack() as opened:
        yield {
            name: await opened.enter_async_context(scripted(ScriptedDrafter(first=first)))
            for name, first in HANDSHAKES.items()
        }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier(tmp_path_factory, handshakes):
    """One verifier for all tests, which dials every drafter from the start."""
    folder = save_tiny_llama(tmp_path_factory.mktemp("tiny"))
    ports = {name: drafter.port for name, drafter in handshakes.items()} | {"main": lasting_port()}
    process = Process(
        "verifier_service",
        "--local-sources=",
        "--port=0",
        f"--model={folder}",
        "--dtype=float32",
        "--threads=1",
        f"--max-draft-tokens={MAX_DRAFT_TOKENS}",
        *(f"--drafter=127.0.0.1:{port}" for port in ports.values()),
    )
    try:
        async with verifier_stub(await asyncio.to_thread(process.address)) as stub:
            opened = Verifier(stub, ports)
            await opened.prepare()
            yield opened
    finally:
        process.close()


def spoilt(*lots: Lot, honest: bool = True):
    """A script that says each lot once per stream, in turn, and something good after each.

    Never in the first round, whose drafts may be stale for another reason.
    """

    def make_script():
        left = iter(lots)

        def script(news: Followed) -> Sequence[Said]:
            bad = [] if news.is_new else next(left, lambda _: [])(news)
            return [*bad, *(news.honest() if honest else [news.block([])])]

        return script

    return make_script


def insisting(*lots: Lot):
    """A script that says each lot until the verifier has noticed: it attaches the sequence anew.

    On a busy machine the verifier may go on without waiting, and what comes then is stale.
    """

    def make_script():
        left = list(lots)
        said: list[tuple[int, int]] = []  # (sequence, epoch) of the lot under way

        def script(news: Followed) -> Sequence[Said]:
            if said and news.sequence == said[0][0] and news.is_new:
                said.clear()
                left.pop(0)
            elif said and (news.sequence, news.epoch) != said[0]:
                said.clear()
            if news.is_new or said or not left:
                return news.honest()
            said.append((news.sequence, news.epoch))
            return [*left[0](news), *news.honest()]

        return script

    return make_script


def one(token_ids: Sequence[int], **fields) -> Lot:
    """A lot of one block; a field may be a function of what is known."""
    return lambda news: [
        news.block(token_ids, **{k: v(news) if callable(v) else v for k, v in fields.items()})
    ]


def q(token_ids: Sequence[int], weights: Sequence[int]) -> tokens_pb2.TokenDistribution:
    return distribution_to_pb(token_ids, weights)


def undrawn(news: Followed) -> Sequence[Said]:
    """A token of its distribution, only not the one that the noise draws."""
    even = DraftDistribution(torch.tensor([3, 4]), torch.tensor([1, 1]))
    drawn = draw(even, news.seed, news.position, news.position)
    return [news.block([7 - drawn], distributions=[q([3, 4], [1, 1])])]


MALFORMED = {
    "ids beyond the vocabulary": [one([1, KNOWN_IDS]), one([LARGEST])],
    "ids of the padding": [one([VOCAB_SIZE - 1])],
    "a base that leaves a gap": [one([1], base_position=lambda n: n.sent + 1)],
    "a base that goes back": [
        one([1], base_position=lambda n: n.sent - 1),
        one([1], base_position=0),
    ],
    "a base out of this world": [one([1], base_position=LARGEST)],
    "one token too many": [one([1] * (MAX_DRAFT_TOKENS + 1))],
    "a hundred thousand tokens": [one([1] * 100_000), one(range(100_000))],
    "future epochs": [one([1], epoch=lambda n: n.epoch + 1), one([1], epoch=LARGEST)],
    "an empty block of a future epoch": [one([], epoch=lambda n: n.epoch + 1)],
    "distributions that nobody asked for": [one([1], distributions=[q([1, 2], [1, 1])])],
}

STALE = {
    "an old epoch": [one([1], epoch=lambda n: n.epoch - 1), one([1] * 8, epoch=0)],
    "sequences that are not there": [
        one([1], sequence=lambda n: n.sequence + 1000),
        one([1], sequence=0),
        one([1], sequence=2**64 - 1),
    ],
    "a flood of blocks": [one([1] * 8, epoch=0)] + 3 * [lambda n: 2000 * [n.block([1], epoch=0)]],
    "a flood of messages": 2
    * [
        lambda n: (
            300
            * [drafter_pb2.DraftResponse(blocks=drafter_pb2.Blocks(blocks=[n.block([1], epoch=0)]))]
        )
    ],
}

# In REJECTION mode: none of these is what the noise gives for the distribution that is sent.
DISHONEST = {
    "tokens outside their distributions": [one([7, 7], distributions=2 * [q([1, 2], [1, 1])])],
    "a token that was not drawn": [undrawn],
    "ids beyond the vocabulary": [one([3], distributions=[q([3, KNOWN_IDS], [1, 1])])],
    "fewer distributions than tokens": [one([3, 3], distributions=[q([3], [1])])],
    "more distributions than tokens": [one([3], distributions=2 * [q([3], [1])])],
    "weights of nothing": [one([3], distributions=[q([3, 4], [0, 0])])],
    "weights beyond any sum": [one([3], distributions=[q([3, 4], [LARGEST, LARGEST])])],
    "other numbers of ids and weights": [one([3], distributions=[q([3, 4], [1])])],
    "an empty distribution": [one([3], distributions=[q([], [])])],
    "one id twice": [one([3], distributions=[q([3, 3], [1, 1])])],
    "ids that overflow": [one([3], distributions=[q([LARGEST, 2 * LARGEST], [1, 1])])],
    "too many entries": [one([3], distributions=[q(range(257), 257 * [1])])],
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_blocks_are_dropped_and_counted(verifier, case):
    lots = MALFORMED[case]
    async with verifier.facing(insisting(*lots)) as before:
        after = before
        for _ in range(5):
            assert await verifier.check() > 0, "drafting did not go on"
            after = await verifier.status()
            if after.num_malformed >= before.num_malformed + len(lots):
                break
    assert after.num_malformed >= before.num_malformed + len(lots)
    assert (after.state, after.num_connects) == ("ready", before.num_connects)


@pytest.mark.parametrize("case", STALE)
async def test_stale_blocks_are_dropped_and_counted(verifier, case):
    lots = STALE[case]
    async with verifier.facing(spoilt(*lots)) as before:
        assert await verifier.check() > 0, "drafting did not go on"
        after = await verifier.until(lambda d: d.num_stale >= before.num_stale + len(lots))
    assert after.num_malformed == before.num_malformed
    assert (after.state, after.num_connects) == ("ready", before.num_connects)


@pytest.mark.parametrize("case", DISHONEST)
async def test_draws_that_do_not_replay_are_malformed(verifier, case):
    lots = DISHONEST[case]
    async with verifier.facing(spoilt(*lots, honest=False)) as before:
        assert await verifier.check(SamplingMode.REJECTION) == 0
        after = await verifier.until(lambda d: d.num_malformed >= before.num_malformed + len(lots))
    assert after.num_malformed == before.num_malformed + len(lots)
    assert (after.state, after.num_connects) == ("ready", before.num_connects)


async def test_an_honest_drafter_is_believed(verifier):
    """The control: without a script that spoils it, the scripted drafter speeds answers up."""
    async with verifier.facing() as before:
        assert await verifier.check() >= MAX_TOKENS
        after = await verifier.status()
    assert after.num_malformed == before.num_malformed


async def test_empty_blocks_leave_plain_decoding(verifier):
    async with verifier.facing(lambda: lambda news: 3 * [news.block([])]) as before:
        assert await verifier.check() == 0
        after = await verifier.status()
    assert after.num_blocks > before.num_blocks
    assert after.num_malformed == before.num_malformed


async def test_answers_that_come_late_are_stale(verifier):
    async with verifier.facing(delay_s=0.2) as before:
        await verifier.check(max_tokens=10)
        after = await verifier.until(lambda d: d.num_stale > before.num_stale)
    assert (after.state, after.num_malformed) == ("ready", before.num_malformed)


async def test_nothing_at_all_is_waited_for_only_so_long(verifier):
    async with verifier.facing(lambda: lambda _: []):
        assert await verifier.check(max_tokens=10) == 0


def nonsense(news: Followed) -> Sequence[Said]:
    """Right tokens, one by one, with everything else of a block out of range."""
    return [
        news.block(
            [token_id],
            base_position=news.sent + index,
            sources=[77],
            parents=[LARGEST, 5],
            confidence=1000 * b"\xff",
            draft_us=LARGEST,
        )
        for index, token_id in enumerate(news.truth[news.sent : news.sent + 3])
    ]


async def test_fields_out_of_range_do_not_reach_the_answer(verifier):
    async with verifier.facing(lambda: nonsense) as before:
        await verifier.check()
        after = await verifier.status()
    assert after.num_blocks > before.num_blocks


KINDS = {
    "no kind": drafter_pb2.DraftResponse(),
    "a kind from the future": b"\xa2\x06\x03abc",
    "another welcome": welcome(protocol_version=9),
    "no blocks": drafter_pb2.DraftResponse(blocks=drafter_pb2.Blocks()),
    "lost sequences that are not there": drafter_pb2.DraftResponse(
        blocks=drafter_pb2.Blocks(
            lost=[drafter_pb2.LostSequence(sequence=2**64 - 1, epoch=LARGEST, reason=77)]
        )
    ),
}


@pytest.mark.parametrize("case", KINDS)
async def test_responses_of_no_use_are_ignored(verifier, case):
    async with verifier.facing(spoilt(*3 * [lambda _: [KINDS[case]]])) as before:
        assert await verifier.check() > 0
        after = await verifier.status()
    assert (after.state, after.num_connects) == ("ready", before.num_connects)
    assert after.num_malformed == before.num_malformed


async def test_a_drafter_that_claims_to_have_lost_a_sequence_is_left_alone(verifier):
    def lost(news: Followed) -> Sequence[Said]:
        entry = drafter_pb2.LostSequence(sequence=news.sequence, epoch=news.epoch, reason=1)
        return [drafter_pb2.DraftResponse(blocks=drafter_pb2.Blocks(lost=[entry]))]

    async with verifier.facing(lambda: lost):
        assert await verifier.check() == 0


ENDS = {
    "the end": HangUp(),
    "an error": HangUp(grpc.StatusCode.INTERNAL),
    "a refusal": HangUp(grpc.StatusCode.RESOURCE_EXHAUSTED),
    "drain": drafter_pb2.DraftResponse(drain=drafter_pb2.Drain()),
    "bytes that are no message": b"\xff\xff\xff",
    "a message over the limit": bytes(INTERNAL_MESSAGE_BYTES + 1),
}


@pytest.mark.parametrize("case", ENDS)
async def test_a_stream_that_ends_in_mid_answer_is_dialled_again(verifier, case):
    streams = 0

    def make_script():
        nonlocal streams
        streams += 1
        return spoilt(lambda n: n.honest(), lambda _: [ENDS[case]])() if streams == 1 else honestly

    async with verifier.facing(make_script) as before:
        await verifier.check()
        after = await verifier.until(
            lambda d: d.state == "ready" and d.num_connects > before.num_connects
        )
        assert await verifier.check() > 0
    assert after.num_malformed == before.num_malformed


async def test_three_malformed_blocks_open_the_breaker_and_it_closes_again(verifier):
    """Three and no more: nothing else has to come for the stream to be closed."""
    streams = 0

    def make_script():
        nonlocal streams
        streams += 1

        def script(news: Followed) -> Sequence[Said]:
            return news.honest() if news.is_new else one([LARGEST])(news)

        return script if streams == 1 else honestly

    async with verifier.facing(make_script) as before:
        is_open = asyncio.Event()

        async def keep_asking() -> None:
            while not is_open.is_set():
                await verifier.check()

        answers = asyncio.create_task(keep_asking())
        opened = await verifier.until(lambda d: d.state == "breaker open")
        is_open.set()
        assert opened.num_malformed == before.num_malformed + 3
        await answers
        closed = await verifier.until(lambda d: d.state == "ready")
        assert closed.num_connects == before.num_connects + 1
        assert await verifier.check() > 0


async def test_a_storm_of_everything_changes_nothing_and_leaves_nothing_behind(verifier):
    rng = random.Random(0)
    lots = [
        *(lot for case in MALFORMED for lot in MALFORMED[case]),
        *(8 * [lot for case in STALE if "flood" not in case for lot in STALE[case]]),
        *(4 * [lambda _, response=response: [response] for response in KINDS.values()]),
        lambda _: [HangUp()],
    ]

    def storm(news: Followed) -> Sequence[Said]:
        bad = rng.choice(lots)(news) if rng.random() < 0.5 else []
        return [*bad, *news.honest()]

    async with verifier.facing(lambda: storm) as before:
        for _ in range(3):
            await verifier.check(at_once=5)
        after = await verifier.until(lambda d: d.num_sequences == 0)
    assert after.num_stale > before.num_stale
    assert after.num_malformed > before.num_malformed
    assert await verifier.is_idle()


@pytest.mark.parametrize("case", HANDSHAKES)
async def test_a_handshake_that_makes_no_sense_costs_nothing(verifier, handshakes, case):
    """All of them are in progress while the tests before this one run."""
    if case in REFUSED:
        link = await verifier.until(lambda d: d.state == "refused", case)
        assert REFUSED[case] in link.detail
    else:
        async with asyncio.timeout(DEADLINE_S):
            while handshakes[case].num_dials < 2:
                await asyncio.sleep(0.02)
        link = await verifier.status(case)
        assert link.state == "connecting"
    assert (link.num_connects, link.num_blocks, link.num_sequences) == (0, 0, 0)
    async with verifier.facing():
        assert await verifier.check() > 0
