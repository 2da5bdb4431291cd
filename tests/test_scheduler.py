"""The scheduler: decoding first, prefill next, speculation last, and nobody starves."""

from hypothesis import given
from hypothesis import strategies as st

from verifier_service.scheduler import Share, Want, share_rows


def test_speculation_is_the_first_to_yield():
    wants = [Want(1, 8), Want(300, 8), Want(1, 8)]
    shares = share_rows(wants, step_rows=64, prefill_rows=128, busy_prefill_rows=128)
    assert shares == [Share(1, 0), Share(62, 0), Share(1, 0)]


def test_prompts_together_get_fewer_rows_beside_running_answers():
    prompts = [Want(300, 0), Want(300, 0), Want(10, 0)]
    alone = share_rows(prompts, step_rows=256, prefill_rows=128, busy_prefill_rows=64)
    assert [share.num_tokens for share in alone] == [128, 128, 0]
    beside = share_rows(
        [Want(1, 0), *prompts], step_rows=256, prefill_rows=128, busy_prefill_rows=64
    )
    assert [share.num_tokens for share in beside] == [1, 64, 0, 0]


def test_the_last_prefill_chunk_carries_its_draft():
    assert share_rows([Want(20, 4)], step_rows=64, prefill_rows=32, busy_prefill_rows=32) == [
        Share(20, 4)
    ]
    assert share_rows([Want(40, 4)], step_rows=64, prefill_rows=32, busy_prefill_rows=32) == [
        Share(32, 0)
    ]


wants = st.lists(st.builds(Want, st.integers(1, 400), st.integers(0, 8)), min_size=1, max_size=40)


rows = st.integers(16, 256)


@given(wants, rows, rows, rows)
def test_every_step_moves_every_decoding_sequence_and_one_prefill(wants, step, prefill, busy):
    shares = share_rows(wants, step_rows=step, prefill_rows=prefill, busy_prefill_rows=busy)
    decoding = [s for w, s in zip(wants, shares, strict=True) if w.num_pending == 1]
    prefills = [s for w, s in zip(wants, shares, strict=True) if w.num_pending > 1]
    assert all(share.num_tokens == 1 for share in decoding)
    assert not prefills or any(share.num_tokens for share in prefills)
    for want, share in zip(wants, shares, strict=True):
        assert 0 <= share.num_tokens <= want.num_pending
        assert share.num_draft <= want.num_draft
        assert not share.num_draft or share.num_tokens == want.num_pending
    rows = sum(share.num_tokens + share.num_draft for share in shares)
    assert rows <= max(step, len(decoding) + 16)
