"""DrafterService end to end, over a real port with the prompt lookup behind it."""

import asyncio
from typing import Any

import grpc
import pytest
from drafter_fakes import Served, attach, commit, hello, serving, until

from drafter_service.engine import DraftEngine
from drafter_service.lookup import PromptLookupDrafter
from drafter_service.outbox import Outbox, Outgoing
from drafter_service.servicer import DrafterServicer, blocks_to_pb
from drafter_service.updates import Block, Lost, LostReason
from paceline.rounds import TokenSource
from paceline.v1 import drafter_pb2 as pb
from paceline.v1 import tokens_pb2

REPEATING = [1, 2, 3, 4, 5, 1, 2]


class PickyDrafter(PromptLookupDrafter):
    tokenizer_fingerprint = "ours"
    vocab_size = 100
    max_context = 10


@pytest.fixture
async def served() -> Any:
    async with serving() as served:
        yield served


async def test_welcome_says_what_drafts_and_its_limits() -> None:
    async with (
        serving(PickyDrafter()) as served,
        served.verifier(tokenizer_fingerprint="ours") as verifier,
    ):
        assert verifier.welcome == pb.Welcome(
            protocol_version=1,
            drafter="prompt-lookup",
            tokenizer_fingerprint="ours",
            max_context=10,
            max_draft_tokens=8,
            modes=[tokens_pb2.SAMPLING_MODE_COUPLED, tokens_pb2.SAMPLING_MODE_REJECTION],
        )


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (
            {"hello": hello(protocol_version=2)},
            grpc.StatusCode.UNIMPLEMENTED,
            ["version 2", "version 1"],
        ),
        (
            {"hello": hello(tokenizer_fingerprint="theirs")},
            grpc.StatusCode.FAILED_PRECONDITION,
            ["'theirs'", "'ours'"],
        ),
        (
            {"hello": hello(tokenizer_fingerprint="ours", vocab_size=101)},
            grpc.StatusCode.FAILED_PRECONDITION,
            ["101", "100"],
        ),
        ({"hello": hello(vocab_size=0)}, grpc.StatusCode.INVALID_ARGUMENT, ["vocab_size"]),
        (
            {"hello": hello(max_draft_tokens=0)},
            grpc.StatusCode.INVALID_ARGUMENT,
            ["max_draft_tokens"],
        ),
        ({"updates": pb.Updates()}, grpc.StatusCode.INVALID_ARGUMENT, ["hello must come first"]),
    ],
)
async def test_a_handshake_that_cannot_work_is_refused_by_name(
    request_: dict[str, Any], code: grpc.StatusCode, words: list[str]
) -> None:
    async with serving(PickyDrafter()) as served:
        error = await served.refusal(**request_)
    assert error.code() is code
    for word in words:
        assert word in (error.details() or "")


async def test_a_verifier_that_says_nothing_is_not_waited_for() -> None:
    async with serving(hello_deadline_s=0.05) as served:
        error = await served.refusal_of_silence()
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_attached_sequence_gets_a_block_up_to_its_credit(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(7, REPEATING, epoch=3, round=5)])
        [block] = await verifier.blocks()
    assert block.draft_us > 0
    block.draft_us = 0
    assert block == tokens_pb2.DraftBlock(
        sequence=7,
        epoch=3,
        base_position=7,
        token_ids=[3, 4, 5, 1],
        sources=[tokens_pb2.TOKEN_SOURCE_PROMPT_LOOKUP],
    )


async def test_a_commit_that_agrees_lets_the_draft_go_on(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING)])
        await verifier.blocks()
        await verifier.update(commits=[commit(1, 7, num_agreed=3)])
        [block] = await verifier.blocks()
    # One token of the first block is still out, so three are new.
    assert (block.epoch, block.base_position) == (1, 11)
    assert list(block.token_ids) == [2, 3, 4]


async def test_a_commit_that_disagrees_starts_the_draft_again_after_it(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING)])
        await verifier.blocks()
        await verifier.update(commits=[commit(1, 7, epoch=2, num_agreed=1, token_ids=[1, 2])])
        [block] = await verifier.blocks()
    assert (block.epoch, block.base_position) == (2, 10)
    assert list(block.token_ids) == [3, 1, 2, 3]


async def test_no_more_than_credit_is_ever_beyond_the_last_commit(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING, max_draft_tokens=3)])
        length, num_out = len(REPEATING), 0
        for credit in (3, 1, 5, 2, 8, 100):
            [block] = await verifier.blocks()
            num_out += len(block.token_ids)
            assert block.base_position + len(block.token_ids) == length + num_out
            length += num_out
            num_out, agreed = 0, num_out
            await verifier.update(
                commits=[commit(1, length - agreed, num_agreed=agreed, max_draft_tokens=credit)]
            )
            if credit == 100:
                [block] = await verifier.blocks()
                assert len(block.token_ids) == 8, "the drafter's own limit"


async def test_no_credit_means_no_blocks_until_there_is_some(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING, max_draft_tokens=0)])
        await verifier.update(attaches=[attach(2, REPEATING)])
        [block] = await verifier.blocks()
        assert block.sequence == 2
        await verifier.update(commits=[commit(1, 7)])
        [block] = await verifier.blocks()
        assert block.sequence == 1


async def test_one_message_carries_the_blocks_of_all_sequences(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(
            attaches=[attach(1, REPEATING), attach(2, [8, 9, 8, 9]), attach(3, [1, 2, 3])]
        )
        blocks = await verifier.blocks()
    # The third repeats nothing: its empty block says so.
    assert {b.sequence: list(b.token_ids) for b in blocks} == {
        1: [3, 4, 5, 1],
        2: [8, 9, 8, 9],
        3: [],
    }


async def test_streams_do_not_see_each_others_sequences(served: Served) -> None:
    async with served.verifier() as first, served.verifier() as second:
        await first.update(attaches=[attach(1, REPEATING)])
        await first.blocks()
        await second.update(commits=[commit(1, 7, num_agreed=1)])
        assert await second.lost() == [(1, 1, LostReason.OUT_OF_STEP)]
        await second.update(attaches=[attach(1, [8, 9, 8, 9])])
        [block] = await second.blocks()
        assert list(block.token_ids) == [8, 9, 8, 9]
        await second.update(detaches=[pb.Detach(sequence=1)])
        await first.update(commits=[commit(1, 7, num_agreed=4)])
        [block] = await first.blocks()
        assert list(block.token_ids) == [2, 3, 4, 5]


async def test_end_is_answered_with_ok_and_frees_everything(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING), attach(2, REPEATING)])
        await verifier.blocks()
        assert served.engine.num_sequences == 2
        await verifier.send(end=pb.EndOfStream())
        await verifier.call.done_writing()
        assert await verifier.call.code() is grpc.StatusCode.OK
        await until(lambda: served.engine.num_sequences == 0)


@pytest.mark.parametrize("cut", ["cancel", "half_close"])
async def test_a_stream_cut_without_end_frees_everything(
    served: Served, cut: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING), attach(2, REPEATING)])
        await verifier.blocks()
        if cut == "cancel":
            verifier.call.cancel()
        else:
            await verifier.call.done_writing()
        await until(lambda: served.engine.num_sequences == 0)
    assert not caplog.records


async def test_a_sequence_that_cannot_be_followed_is_named_and_the_rest_goes_on() -> None:
    async with (
        serving(PickyDrafter(), max_sequences=3) as served,
        served.verifier(tokenizer_fingerprint="ours") as verifier,
    ):
        await verifier.update(
            attaches=[
                attach(1, REPEATING),
                attach(2, [1] * 11),
                attach(3, [1]),
                attach(4, [1]),
                attach(5, [1]),
            ],
            commits=[commit(3, 9, token_ids=[1]), commit(6, 0, epoch=4)],
        )
        assert await verifier.lost() == [
            (2, 1, LostReason.CONTEXT),
            (5, 1, LostReason.CAPACITY),
            (3, 1, LostReason.OUT_OF_STEP),
            (6, 4, LostReason.OUT_OF_STEP),
        ]
        # 3 is forgotten, so there is room again, and it may come back under a new epoch.
        await verifier.update(attaches=[attach(3, [8, 9, 8, 9], epoch=2)])
        numbers: list[int] = []
        while 3 not in numbers:
            numbers += [block.sequence for block in await verifier.blocks()]


async def test_attaching_twice_without_a_new_epoch_loses_the_sequence(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING), attach(1, REPEATING)])
        assert await verifier.lost() == [(1, 1, LostReason.OUT_OF_STEP)]
        await until(lambda: served.engine.num_sequences == 0)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"hello": hello()}, "hello"),
        ({}, "request"),
        ({"updates": pb.Updates(attaches=[attach(1, [100])])}, "token id 100"),
        ({"updates": pb.Updates(attaches=[attach(1, [])])}, "prompt is empty"),
        ({"updates": pb.Updates(attaches=[attach(1, [1], num_prompt_tokens=2)])}, "prompt_tokens"),
        (
            {
                "updates": pb.Updates(
                    attaches=[attach(1, [1], params=tokens_pb2.SamplingParams(top_p=2.0))]
                )
            },
            "top_p",
        ),
        ({"updates": pb.Updates(commits=[commit(1, 1, token_ids=[100])])}, "commits.token_ids"),
    ],
)
async def test_what_makes_no_sense_ends_the_stream_by_name(
    served: Served, request_: dict[str, Any], word: str
) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(9, REPEATING)])
        await verifier.send(**request_)
        error = await verifier.error()
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert word in (error.details() or "")
    await until(lambda: served.engine.num_sequences == 0)


async def test_draining_tells_verifiers_and_waits_for_their_sequences(served: Served) -> None:
    async with served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING)])
        await verifier.blocks()
        draining = asyncio.create_task(served.servicer.drain())
        assert (await verifier.receive()).WhichOneof("response") == "drain"
        error = await served.refusal(hello=hello())
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        await verifier.update(commits=[commit(1, 7, num_agreed=4)])
        await verifier.blocks()
        assert not draining.done()
        await verifier.update(detaches=[pb.Detach(sequence=1)])
        await asyncio.wait_for(draining, 5)


async def test_a_failing_drafter_loses_sequences_and_serves_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(PromptLookupDrafter):
        def extend(self, states: Any) -> list[list[int] | None]:
            if any(13 in state.token_ids for state in states):
                raise RuntimeError("broken")
            return super().extend(states)

    async with serving(Failing()) as served, served.verifier() as verifier:
        await verifier.update(attaches=[attach(1, REPEATING), attach(2, [13])])
        assert await verifier.lost() == [
            (1, 1, LostReason.UNSPECIFIED),
            (2, 1, LostReason.UNSPECIFIED),
        ]
        await verifier.update(attaches=[attach(1, REPEATING, epoch=2)])
        [block] = await verifier.blocks()
        assert block.epoch == 2
    assert "a drafting step failed" in caplog.text


class DeafVerifier:
    """A servicer's context whose peer reads the welcome and nothing after it, but talks on."""

    def __init__(self) -> None:
        self.num_read = 0
        self.num_written = 0
        self.status: Any = None

    async def read(self) -> Any:
        await asyncio.sleep(0.001)
        self.num_read += 1
        if self.num_read == 1:
            return pb.DraftRequest(hello=hello())
        unknown = commit(1, 1, epoch=self.num_read)
        return pb.DraftRequest(updates=pb.Updates(commits=[unknown]))

    async def write(self, _: Any) -> None:
        self.num_written += 1
        if self.num_written > 1:
            await asyncio.Event().wait()

    async def abort_with_status(self, status: Any) -> None:
        self.status = status
        raise grpc.aio.AbortError


async def test_a_verifier_that_does_not_read_is_cut_off() -> None:
    engine = DraftEngine(PromptLookupDrafter(), max_sequences=1, max_draft_tokens=2)
    engine.start()
    context: Any = DeafVerifier()
    with pytest.raises(grpc.aio.AbortError):
        await asyncio.wait_for(DrafterServicer(engine).Draft(None, context), 5)
    assert context.status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await asyncio.to_thread(engine.stop)


async def test_what_waits_leaves_in_one_message() -> None:
    outbox = Outbox(10)
    blocks = [Block(1, 1, base, [4], 1, TokenSource.RANDOM, 1) for base in (5, 6)]
    lost = Lost(2, 1, LostReason.CONTEXT)
    outbox.deliver(blocks[:1], [])
    outbox.deliver(blocks[1:], [lost])
    await asyncio.sleep(0)
    assert await outbox.take() == Outgoing(blocks, [lost])


def test_a_block_of_eight_ids_takes_at_most_forty_bytes() -> None:
    block = Block(
        sequence=100,
        epoch=100,
        base_position=8000,
        token_ids=[49151] * 8,
        round=100,
        source=TokenSource.PROMPT_LOOKUP,
        draft_us=100,
    )
    [message] = blocks_to_pb(Outgoing([block])).blocks
    assert message.ByteSize() <= 40
