"""The mailbox: whatever a drafter sends, only tokens that continue the sequence are kept."""

from hypothesis import given
from hypothesis import strategies as st

from paceline.rounds import TokenSource
from verifier_service.mailbox import Block, Mailbox, Receipt


def block(mailbox, token_ids, *, epoch=None, base=None, sources=None):
    return Block(
        sequence=1,
        epoch=mailbox.epoch if epoch is None else epoch,
        base_position=mailbox.position + len(mailbox) if base is None else base,
        token_ids=token_ids,
        sources=[TokenSource.PROMPT_LOOKUP] * len(token_ids) if sources is None else sources,
    )


def test_pieces_of_one_stream_join():
    mailbox = Mailbox(10, 100, 8)
    assert mailbox.offer(block(mailbox, [1, 2, 3])) is Receipt.KEPT
    assert mailbox.offer(block(mailbox, [4, 5])) is Receipt.KEPT
    assert mailbox.peek(4).token_ids == [1, 2, 3, 4]


def test_an_agreeing_commit_keeps_the_epoch_and_the_rest():
    mailbox = Mailbox(10, 100, 8)
    mailbox.offer(block(mailbox, [1, 2, 3, 4]))
    commit = mailbox.commit([1, 2])
    assert (commit.epoch, commit.num_agreed, list(commit.token_ids)) == (0, 2, [])
    assert mailbox.peek(8).token_ids == [3, 4]
    assert mailbox.offer(block(mailbox, [5])) is Receipt.KEPT


def test_a_disagreeing_commit_opens_an_epoch_that_old_blocks_cannot_enter():
    mailbox = Mailbox(10, 100, 8)
    mailbox.offer(block(mailbox, [1, 2, 3]))
    under_way = block(mailbox, [4])
    commit = mailbox.commit([1, 9])
    assert (commit.epoch, commit.base_position, commit.num_agreed) == (1, 10, 1)
    assert list(commit.token_ids) == [9]
    assert len(mailbox) == 0
    assert mailbox.offer(under_way) is Receipt.STALE
    assert mailbox.offer(block(mailbox, [7])) is Receipt.KEPT


def test_malformed_blocks_leave_no_trace():
    mailbox = Mailbox(10, 100, 4)
    for bad in (
        block(mailbox, [100]),
        block(mailbox, [-1]),
        block(mailbox, [1] * 5),
        block(mailbox, [1], epoch=3),
        block(mailbox, [1], base=12),
        block(mailbox, [1, 2], sources=[TokenSource.RANDOM]),
    ):
        assert mailbox.offer(bad) is Receipt.MALFORMED
        assert len(mailbox) == 0


def test_an_empty_block_says_that_nothing_will_come_until_the_next_commit():
    mailbox = Mailbox(10, 100, 8)
    assert mailbox.offer(block(mailbox, [])) is Receipt.KEPT
    assert mailbox.is_empty_handed
    mailbox.commit([5])
    assert not mailbox.is_empty_handed


ids = st.integers(min_value=-2, max_value=6)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("offer"),
            st.lists(ids, max_size=4),
            st.integers(-1, 1),
            st.integers(-2, 2),
        ),
        st.tuples(st.just("commit"), st.lists(st.integers(0, 4), min_size=1, max_size=4)),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


@given(steps)
def test_what_a_round_verifies_always_continues_the_committed_tokens(plan):
    """Against a record of everything kept in the present epoch."""
    mailbox = Mailbox(3, 5, 6)
    position, kept = 3, []
    for step in plan:
        if step[0] == "offer":
            _, tokens, epoch_shift, base_shift = step
            offered = block(
                mailbox,
                tokens,
                epoch=mailbox.epoch + epoch_shift,
                base=position + len(kept) + base_shift,
            )
            valid = (
                epoch_shift == 0
                and base_shift == 0
                and all(0 <= token < 5 for token in tokens)
                and len(kept) + len(tokens) <= 6
            )
            receipt = mailbox.offer(offered)
            assert (receipt is Receipt.KEPT) == valid
            if valid:
                kept += tokens
        elif step[0] == "commit":
            tokens = step[1]
            epoch = mailbox.epoch
            agrees = kept[: len(tokens)] == tokens
            commit = mailbox.commit(tokens)
            position += len(tokens)
            kept = kept[len(tokens) :] if agrees else []
            assert (commit.epoch == epoch) == agrees
        else:
            mailbox.restart()
            kept = []
        assert mailbox.position == position
        assert list(mailbox.peek(99).token_ids) == kept
