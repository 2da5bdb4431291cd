"""The model drafter on a model whose logits are a table: batching, catching up, rolling back."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from drafter_fakes import Verifier, attach, commit, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from drafter_service.drafter import NoRoomError
from drafter_service.model import ModelDrafter
from drafter_service.state import DraftState, open_state
from drafter_service.updates import Attach, Commit, Limits
from paceline.codec import distribution_from_pb, params_to_pb
from paceline.model.cache import CapacityError
from paceline.model.engine import Rows
from paceline.params import SamplingMode, SamplingParams
from paceline.rejection import checked, draw
from paceline.rounds import TokenSource
from paceline.sampling import Chooser, SamplingState

VOCAB_SIZE, PADDED_SIZE, EOS = 24, 32, 23
# A sequence with this token has no finite logits.
POISON = 13


@dataclass(eq=False)
class TableCache:
    model: "TableModel"
    token_ids: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.token_ids)

    def rollback(self, length: int) -> None:
        assert 0 <= length <= self.length
        del self.token_ids[length:]

    def free(self) -> None:
        self.model.caches.remove(self)


class TableModel:
    """Logits are a hash of the whole prefix, so one wrong token in a cache changes them."""

    name, model_fingerprint, tokenizer_fingerprint = "table", "m", "t"
    vocab_size, max_context, eos_token_ids = VOCAB_SIZE, 200, frozenset({EOS})
    has_reduced_head = False

    def __init__(self, max_sequences: int = 8) -> None:
        self.max_sequences = max_sequences
        self.caches: list[TableCache] = []
        # Rows of each forward, per sequence.
        self.forwards: list[list[int]] = []

    def new_cache(self) -> TableCache:
        if len(self.caches) == self.max_sequences:
            raise CapacityError
        self.caches.append(TableCache(self))
        return self.caches[-1]

    def forward(self, rows: Sequence[Any]) -> Tensor:
        self.forwards.append([len(entry.token_ids) for entry in rows])
        logits = []
        for entry in rows:
            assert entry.token_ids and isinstance(entry, Rows)
            for index, token_id in enumerate(entry.token_ids, 1):
                entry.cache.token_ids.append(token_id)
                if index > len(entry.token_ids) - entry.num_logits:
                    logits.append(self.row(entry.cache.token_ids))
        return torch.stack(logits) if logits else torch.empty(0, PADDED_SIZE)

    @staticmethod
    def row(token_ids: Sequence[int]) -> Tensor:
        if POISON in token_ids:
            return torch.full((PADDED_SIZE,), math.nan)
        digest = hashlib.sha256(bytes(token_ids)).digest()
        logits = torch.tensor([byte / 32 for byte in digest])
        # Padding that would win if anything looked at it.
        logits[VOCAB_SIZE:] += 100
        return logits


def followed(
    drafter: ModelDrafter,
    token_ids: list[int],
    params: SamplingParams | None = None,
    *,
    num_prompt_tokens: int = 1,
    vocab_size: int = VOCAB_SIZE,
    seed: int = 7,
) -> DraftState:
    state = open_state(
        Attach(1, 1, token_ids, num_prompt_tokens, params or SamplingParams(), seed, 5, 1),
        Limits(vocab_size, 200, 200, 5, drafter.eos_token_ids),
    )
    assert isinstance(state, DraftState)
    drafter.attach(state)
    return state


def model_drafter(model: TableModel, **options: Any) -> ModelDrafter:
    return ModelDrafter(model, **options)  # type: ignore[arg-type]


def draft(drafter: ModelDrafter, states: Sequence[DraftState]) -> None:
    """What the engine does, until nobody wants more."""
    while wanting := [state for state in states if state.num_wanted]:
        for state, token_ids in zip(wanting, drafter.extend(wanting), strict=True):
            if token_ids is None:
                state.rest()
            else:
                state.extend(token_ids)


def apply(drafter: ModelDrafter, state: DraftState, event: Commit) -> None:
    kept = state.commit(event)
    assert isinstance(kept, int)
    drafter.rollback(state, kept)


def plain_decoding(token_ids: list[int], count: int, params: SamplingParams) -> list[int]:
    """What the target would say, were it this model: no cache, no batch, one token at a time."""
    chooser, decoded = Chooser(VOCAB_SIZE), list(token_ids)
    for _ in range(count):
        sampling = SamplingState(
            params, 7, decoded[:1], decoded[1:], vocab_size=VOCAB_SIZE, end_token_ids=[EOS]
        )
        decoded.append(chooser.choose(TableModel.row(decoded), sampling))
    return decoded[len(token_ids) :]


# Neither the end of the sequence nor poison, so that drafts have their full length.
BANS = {EOS: -100.0, POISON: -100.0}
PARAMS = [
    SamplingParams(logit_bias=BANS),
    SamplingParams(temperature=0.0, logit_bias=BANS),
    SamplingParams(top_k=5, top_p=0.8, min_tokens=50, logit_bias={POISON: -100.0}),
    SamplingParams(
        repetition_penalty=1.7,
        frequency_penalty=0.9,
        presence_penalty=0.3,
        logit_bias={**BANS, 3: 2.0},
    ),
]
token_lists = st.lists(st.integers(0, 12), min_size=1, max_size=9)


@pytest.mark.parametrize("params", PARAMS)
def test_a_target_that_drafts_for_itself_is_always_right(params: SamplingParams) -> None:
    drafter = model_drafter(TableModel())
    state = followed(drafter, [4, 1, 1], params)
    draft(drafter, [state])
    assert state.token_ids[3:] == plain_decoding([4, 1, 1], 5, params)


@settings(max_examples=25, deadline=None)
@given(
    prompts=st.lists(token_lists, min_size=1, max_size=5),
    chosen=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 5), token_lists), min_size=1, max_size=4
    ),
    max_step_rows=st.sampled_from([3, 7, 256]),
)
def test_a_sequence_in_a_batch_drafts_what_it_would_draft_alone(
    prompts: list[list[int]], chosen: list[tuple[int, int, list[int]]], max_step_rows: int
) -> None:
    """Through commits that agree with some of the draft and then differ, or only agree."""
    params = [PARAMS[index % len(PARAMS)] for index in range(len(prompts))]
    drafter = model_drafter(TableModel(), max_step_rows=max_step_rows)
    states = [followed(drafter, prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    draft(drafter, states)
    for epoch, (index, num_agreed, token_ids) in enumerate(chosen, 2):
        state = states[index % len(states)]
        state.take_block(TokenSource.DRAFT_MODEL, 0)
        event = Commit(1, epoch, state.num_committed, num_agreed, token_ids, 5, 2)
        if state.num_sent >= num_agreed:
            apply(drafter, state, event)
        draft(drafter, states)
    for state, own in zip(states, params, strict=True):
        committed = state.token_ids[: state.num_committed]
        assert state.token_ids[state.num_committed :] == plain_decoding(committed, 5, own)


def test_all_sequences_share_one_forward_per_step() -> None:
    model = TableModel()
    drafter = model_drafter(model)
    states = [followed(drafter, [1] * length, PARAMS[0]) for length in (3, 1, 2)]
    draft(drafter, states)
    assert model.forwards == [[1, 2, 3]] + [[1, 1, 1]] * 4


def test_committed_tokens_are_caught_up_with_in_one_forward() -> None:
    model = TableModel()
    drafter = model_drafter(model)
    state = followed(drafter, [1, 2], PARAMS[0])
    apply(drafter, state, Commit(1, 1, 2, 0, [3, 4], 5, 2))
    draft(drafter, [state])
    del model.forwards[:]
    # The draft is full, its last token unread; a commit of all of it and two more adds three rows.
    state.take_block(TokenSource.DRAFT_MODEL, 0)
    apply(drafter, state, Commit(1, 1, 4, 5, [6, 7], 5, 2))
    draft(drafter, [state])
    assert model.forwards == [[3], [1], [1], [1], [1]]


def test_a_rollback_keeps_what_the_commit_agrees_with() -> None:
    model = TableModel()
    drafter = model_drafter(model)
    state = followed(drafter, [1, 2], PARAMS[0])
    draft(drafter, [state])
    state.take_block(TokenSource.DRAFT_MODEL, 0)
    other = (state.token_ids[5] + 1) % 12
    del model.forwards[:]
    apply(drafter, state, Commit(1, 2, 2, 3, [other], 5, 2))
    draft(drafter, [state])
    assert model.forwards == [[1]] * 5, "three agreed tokens are not read again"


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    model = TableModel()
    drafter = model_drafter(model, max_step_rows=8)
    long, short = (followed(drafter, [1] * length, PARAMS[0]) for length in (30, 2))
    draft(drafter, [long, short])
    assert model.forwards[:5] == [[2, 6], [1, 7], [1, 7], [1, 7], [1, 3]]
    assert len(long.token_ids) == 35


def test_ids_beyond_the_targets_vocabulary_are_never_proposed() -> None:
    drafter = model_drafter(TableModel())
    states = [followed(drafter, [1, 2], seed=seed, vocab_size=4) for seed in range(8)]
    draft(drafter, states)
    assert {len(state.token_ids) for state in states} == {7}
    assert max(token_id for state in states for token_id in state.token_ids) < 4


def test_the_draft_ends_with_the_models_end_of_sequence() -> None:
    drafter = model_drafter(TableModel())
    state = followed(drafter, [1, 2], SamplingParams(logit_bias={EOS: 100.0}))
    draft(drafter, [state])
    assert state.token_ids == [1, 2, EOS]


def test_no_free_cache_is_no_room() -> None:
    drafter = model_drafter(TableModel(max_sequences=1))
    state = followed(drafter, [1])
    with pytest.raises(NoRoomError):
        followed(drafter, [1])
    drafter.detach(state)
    followed(drafter, [1])


def test_logits_that_are_not_finite_stop_one_sequence_alone() -> None:
    model = TableModel()
    drafter = model_drafter(model)
    healthy, ill = followed(drafter, [1, 2], PARAMS[0]), followed(drafter, [POISON], PARAMS[0])
    healthy_cache = model.caches[0]
    draft(drafter, [healthy, ill])
    assert (healthy.num_drafted, ill.num_drafted) == (5, 0)
    # A commit of nothing asks again for a token after the last one read.
    apply(drafter, ill, Commit(1, 1, 1, 0, [], 5, 2))
    draft(drafter, [ill])
    assert ill.num_drafted == 0
    drafter.detach(ill)
    assert model.caches == [healthy_cache]


async def test_a_served_model_sends_each_token_as_it_comes() -> None:
    model = TableModel()
    async with (
        serving(model_drafter(model)) as served,
        served.verifier(vocab_size=VOCAB_SIZE, tokenizer_fingerprint="t") as verifier,
    ):
        assert verifier.welcome.drafter == "table"
        assert verifier.welcome.max_context == 200
        await verifier.update(attaches=[attach(1, [1, 2], seed=7, num_prompt_tokens=1)])
        token_ids: list[int] = []
        while len(token_ids) < 4:
            for block in await verifier.blocks():
                assert block.base_position == 2 + len(token_ids)
                assert block.sources == [int(TokenSource.DRAFT_MODEL)]
                token_ids += block.token_ids
        assert len(model.forwards) == 4
        assert token_ids == plain_decoding([1, 2], 4, SamplingParams())
        await verifier.update(commits=[commit(1, 2, epoch=2, num_agreed=2, token_ids=[5])])
        block = (await verifier.blocks())[0]
        assert block.base_position == 5
        expected = plain_decoding([1, 2, *token_ids[:2], 5], 1, SamplingParams())
        assert list(block.token_ids) == expected


async def test_under_rejection_each_token_replays_from_the_distribution_sent_with_it() -> None:
    """What the verifier checks before it believes a distribution."""
    params = SamplingParams(mode=SamplingMode.REJECTION, top_k=6, logit_bias=BANS)
    async with (
        serving(model_drafter(TableModel())) as served,
        served.verifier(vocab_size=VOCAB_SIZE, tokenizer_fingerprint="t") as verifier,
    ):
        start = attach(1, [1, 2], seed=7, num_prompt_tokens=1, params=params_to_pb(params))
        await verifier.update(attaches=[start])
        await replay(verifier, epoch=1, run_start=2, position=2, count=4)
        await verifier.update(commits=[commit(1, 2, num_agreed=2)])
        await replay(verifier, epoch=1, run_start=2, position=6, count=2)
        # A rejection after the first of them: the draws start anew behind the recovered token.
        await verifier.update(commits=[commit(1, 4, epoch=2, num_agreed=1, token_ids=[3])])
        await replay(verifier, epoch=2, run_start=6, position=6, count=4)


async def replay(
    verifier: Verifier, *, epoch: int, run_start: int, position: int, count: int
) -> None:
    end = position + count
    while position < end:
        for block in await verifier.blocks():
            assert (block.epoch, block.base_position) == (epoch, position)
            for token_id, message in zip(block.token_ids, block.distributions, strict=True):
                distribution = checked(*distribution_from_pb(message), VOCAB_SIZE)
                assert distribution is not None
                assert 1 < len(distribution.token_ids) <= 6
                assert draw(distribution, 7, run_start, position) == token_id
                position += 1
