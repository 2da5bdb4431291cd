"""What a round costs on the wire between a verifier and a drafter."""

import pytest
import torch

from drafter_service.outbox import Outgoing
from drafter_service.servicer import blocks_to_pb
from drafter_service.updates import Block
from paceline.rejection import quantised
from paceline.rounds import TokenSource
from verifier_service.drafters import commit_to_pb
from verifier_service.links import Committed
from verifier_service.mailbox import Commit

NUM_DRAFT_TOKENS = 8
# As large as they get in a long-lived process with the embedded model.
SEQUENCE, EPOCH, POSITION, TOKEN_ID, DRAFT_US = 10**6, 1000, 8191, 49_151, 5000
# Of Qwen2.5, among the largest in use.
LARGE_VOCABULARY = 152_064


def block_bytes(**fields) -> int:
    given = {
        "sequence": SEQUENCE,
        "epoch": EPOCH,
        "base_position": POSITION,
        "token_ids": NUM_DRAFT_TOKENS * [TOKEN_ID],
        "round": EPOCH,
        "source": TokenSource.DRAFT_MODEL,
        "draft_us": DRAFT_US,
    }
    [message] = blocks_to_pb(Outgoing(blocks=[Block(**(given | fields))])).blocks
    assert len(message.token_ids) == NUM_DRAFT_TOKENS
    return message.ByteSize()


@pytest.mark.parametrize("num_agreed", [NUM_DRAFT_TOKENS, 3, 0])
def test_a_coupled_round_of_eight_tokens_costs_at_most_64_bytes(num_agreed):
    """The block and the commit that follows it, whatever number of tokens stand."""
    commit = commit_to_pb(
        Committed(
            sequence=SEQUENCE,
            commit=Commit(EPOCH, POSITION, num_agreed, [TOKEN_ID]),
            max_draft_tokens=NUM_DRAFT_TOKENS,
            round=EPOCH,
        )
    )
    assert list(commit.token_ids) == [TOKEN_ID]
    assert block_bytes() + commit.ByteSize() <= 64


def test_a_rejection_block_of_eight_tokens_costs_at_most_2500_bytes():
    generator = torch.Generator().manual_seed(0)
    sizes = []
    for spread in (0.5, 1.0, 2.0, 4.0):
        found = [
            quantised(spread * torch.randn(LARGE_VOCABULARY, generator=generator))
            for _ in range(NUM_DRAFT_TOKENS)
        ]
        assert {len(q.token_ids) for q in found} == {64}
        pairs = [(q.token_ids.tolist(), q.weights.tolist()) for q in found]
        token_ids = [ids[-1] for ids, _ in pairs]
        sizes.append(block_bytes(token_ids=token_ids, distributions=pairs))
    assert max(sizes) <= 2500
