"""What drafters are told, and when: verifier_service/links.py."""

from paceline.params import SamplingParams
from paceline.sampling import SamplingState
from verifier_service.links import Attach, Committed, Detach, DraftLinks, Update
from verifier_service.opening import new_sequence
from verifier_service.sequence import Request, VerifierSequence

LINK = 1


def opened(token_ids: list[int]) -> VerifierSequence:
    request = Request(token_ids, [], SamplingParams(max_tokens=32), seed=1, max_draft_tokens=8)
    sequence = new_sequence(request, lambda event: None, 100)
    sequence.state = SamplingState(request.params, request.seed, token_ids, vocab_size=100)
    return sequence


def attached(credit: int) -> tuple[DraftLinks, VerifierSequence]:
    links, sequence = DraftLinks(), opened([1, 2, 3])
    links.up(LINK, max_context=0, max_draft_tokens=8)
    links.attach_new([sequence], lambda _: credit)
    (attach,) = links.take_updates()[LINK]
    assert isinstance(attach, Attach)
    return links, sequence


def commit(
    links: DraftLinks, sequence: VerifierSequence, token_ids: list[int], credit: int
) -> list[Update]:
    sequence.token_ids += token_ids
    links.commit(sequence, sequence.mailbox.commit(token_ids), credit)
    return links.take_updates().get(LINK, [])


def test_a_drafter_at_rest_hears_nothing_until_it_is_to_go_on() -> None:
    links, sequence = attached(4)
    # That it is to rest, it is told.
    (update,) = commit(links, sequence, [4], 0)
    assert isinstance(update, Committed)
    assert update.max_draft_tokens == 0
    assert commit(links, sequence, [5], 0) == []
    assert commit(links, sequence, [6, 7], 0) == []
    (update,) = commit(links, sequence, [8], 4)
    assert isinstance(update, Committed)
    assert update.commit.base_position == 4
    assert update.commit.num_agreed == 0
    assert update.commit.token_ids == [5, 6, 7, 8]
    assert update.commit.epoch == sequence.mailbox.epoch
    (update,) = commit(links, sequence, [9], 4)
    assert isinstance(update, Committed)
    assert update.commit.base_position == 8


def test_a_finished_answer_reaches_a_drafter_at_rest_whole() -> None:
    links, sequence = attached(0)
    assert commit(links, sequence, [4], 0) == []
    assert commit(links, sequence, [5], 0) == []
    sequence.token_ids += [6]
    links.finish(sequence)
    (update,) = links.take_updates()[LINK]
    assert isinstance(update, Detach)
    assert update.token_ids == [4, 5, 6]


def test_another_attach_carries_what_was_not_told() -> None:
    links, sequence = attached(0)
    assert commit(links, sequence, [4], 0) == []
    links.attach_again(sequence)
    links.attach_new([sequence], lambda _: 4)
    detach, attach = links.take_updates()[LINK]
    assert isinstance(detach, Detach)
    assert isinstance(attach, Attach)
    assert attach.token_ids == [1, 2, 3, 4]
    (update,) = commit(links, sequence, [5], 4)
    assert isinstance(update, Committed)
    assert update.commit.base_position == 4
