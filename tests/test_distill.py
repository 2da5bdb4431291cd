"""The pure parts of distilling: ranking, loss, acceptance, schedule, corpus."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from tiny import TableModel

from paceline.distill.acceptance import match_probability
from paceline.distill.corpus import Corpus, OtherCorpus, Record
from paceline.distill.losses import divergence
from paceline.distill.schedule import batches, learning_rate
from paceline.distill.student import Keep, Unsupported, kept_layers
from paceline.distill.vocabulary import coverage, expected_counts, ranked
from paceline.noise import Purpose
from paceline.races import exponentials, token_offsets


def record(
    output: list[int], top_ids: list[list[int]], probs: list[list[float]], index: int = 0
) -> Record:
    return Record(
        index=index,
        prompt=[1, 2],
        output=output,
        temperature=1.0,
        seed=7,
        top_ids=torch.tensor(top_ids, dtype=torch.int32),
        top_logprobs=torch.tensor(probs).log().half(),
    )


# The draft vocabulary.


def test_ids_are_ranked_by_how_often_the_target_would_say_them():
    records = [
        record([3, 4], [[3, 5], [4, 5]], [[0.5, 0.375], [0.5, 0.375]]),
        record([6], [[6, 3]], [[0.5, 0.25]]),
    ]
    counts = expected_counts(records, 8)
    assert counts.tolist() == pytest.approx([0, 0, 0, 0.75, 0.5, 0.75, 0.5, 0], abs=1e-3)
    # 5 was never said, and is as likely as 3. Equal counts: the lowest id.
    assert ranked(counts.round(decimals=2), 2) == [3, 5]
    assert ranked(counts.round(decimals=2), 3) == [3, 4, 5]
    assert ranked(counts.round(decimals=2), 5) == [0, 3, 4, 5, 6]
    assert coverage(records, [3, 4]) == pytest.approx(2 / 3)


def test_the_end_of_an_answer_is_always_in_the_vocabulary():
    counts = torch.tensor([5.0, 4.0, 3.0, 0.0])
    assert ranked(counts, 2, always=[3]) == [0, 3]
    assert ranked(counts, 1, always=[3]) == [3]


# The loss.


def test_the_loss_is_the_divergence_computed_by_hand():
    # The draft vocabulary has 3 ids; the target's likeliest are the first, one outside, the third.
    draft = [0.5, 0.3, 0.2]
    target = [0.4, 0.3, 0.2]  # and 0.1 for all others
    kl, weight = divergence(
        torch.tensor([draft]).log(), torch.tensor([[0, -1, 2]]), torch.tensor([target]).log()
    )
    left = 0.4 + 0.2 + 0.1
    by_hand = sum(
        p / left * math.log(p / left / q) for p, q in ((0.4, 0.5), (0.2, 0.2), (0.1, 0.3))
    )
    assert float(weight) == pytest.approx(left, rel=1e-5)
    assert float(kl / weight) == pytest.approx(by_hand, rel=1e-4)


def test_the_loss_is_least_where_student_and_target_agree():
    target = torch.tensor([[0.6, 0.3, 0.1]])
    columns = torch.tensor([[0, 1, 2]])
    equal, weight = divergence(target.log() + 3.0, columns, target.log())
    assert float(weight) == pytest.approx(1.0)
    assert float(equal) == pytest.approx(0.0, abs=1e-5)
    logits = torch.zeros(1, 3, requires_grad=True)
    for _ in range(400):
        kl, _ = divergence(logits, columns, target.log())
        (gradient,) = torch.autograd.grad(kl, logits)
        logits = (logits - gradient).detach().requires_grad_()
    assert torch.softmax(logits, -1).tolist()[0] == pytest.approx(target.tolist()[0], abs=1e-3)


def test_a_row_whose_likely_ids_are_all_outside_teaches_nothing():
    logits = torch.tensor([[0.1, 0.9]], requires_grad=True)
    kl, weight = divergence(logits, torch.tensor([[-1]]), torch.tensor([[0.0]]))
    (gradient,) = torch.autograd.grad(kl, logits)
    assert (float(kl.detach()), float(weight)) == (0.0, 0.0)
    assert gradient.abs().max() == 0.0


# Acceptance.


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    p, q = TableModel(0).probs, TableModel(1).probs
    return [(p[a], q[b]) for a, b in itertools.product(range(5), range(5))]


def test_the_chance_of_a_match_is_what_the_shared_noise_gives():
    """Against 4,000 positions' noise, for pairs with zero entries too."""
    offsets = token_offsets(5)
    noise = torch.stack([exponentials(9, Purpose.CHOOSE, i, offsets) for i in range(4000)])
    for p, q in pairs():
        matches = (noise / p).argmin(-1) == (noise / q).argmin(-1)
        assert float(match_probability(p, q)) == pytest.approx(
            float(matches.double().mean()), abs=0.03
        )


def test_the_chance_of_a_match_is_the_formula_enumerated_and_within_its_bounds():
    for p, q in pairs():
        by_hand = sum(
            1 / sum(max(p[z] / p[y], q[z] / q[y]) for z in range(5))
            for y in range(5)
            if p[y] > 0 and q[y] > 0
        )
        found = float(match_probability(p, q))
        assert found == pytest.approx(float(by_hand), rel=1e-12)
        distance = float((p - q).abs().sum() / 2)
        assert (1 - distance) / (1 + distance) - 1e-12 <= found <= 1 - distance + 1e-12
    assert float(match_probability(p, p)) == pytest.approx(1.0)


def test_probability_that_is_not_known_only_lowers_the_chance():
    for p, q in pairs():
        assert match_probability(p[:3], q[:3]) <= match_probability(p, q) + 1e-12
    assert float(match_probability(torch.zeros(3), torch.zeros(3))) == 0.0


# Schedule and student.


def test_the_learning_rate_rises_then_falls():
    rates = [learning_rate(step / 1000, 2.0) for step in range(1001)]
    peak = rates.index(max(rates))
    assert max(rates) == pytest.approx(2.0) and 0 < rates[0] < 0.3
    assert rates[:peak] == sorted(rates[:peak]) and peak <= 60
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("start", [0, 1, 6, 7, 20])
def test_batches_are_the_same_wherever_one_begins(start: int):
    lengths = [5, 3, 9, 1, 4, 4, 8, 2, 7, 6, 5, 5, 1]
    whole = list(itertools.islice(batches(lengths, 2, 11), 40))
    assert list(itertools.islice(batches(lengths, 2, 11, start), 40 - start)) == whole[start:]
    epochs = [list(itertools.chain(*whole[at : at + 7])) for at in range(0, 35, 7)]
    assert all(sorted(epoch) == list(range(13)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_layers_are_kept_from_both_ends_or_from_the_beginning():
    assert kept_layers(30, 2, Keep.ENDS) == [0, 29]
    assert kept_layers(30, 3, Keep.ENDS) == [0, 1, 29]
    assert kept_layers(30, 2, Keep.FIRST) == [0, 1]
    assert kept_layers(2, 2, Keep.ENDS) == [0, 1]
    # Below them those that stay as they are.
    assert kept_layers(30, 2, Keep.ENDS, 4) == [0, 1, 2, 3, 4, 29]
    assert kept_layers(30, 2, Keep.FIRST, 4) == [0, 1, 2, 3, 4, 5]
    assert kept_layers(30, 1, Keep.ENDS, 1) == [0, 1]
    with pytest.raises(Unsupported, match="2 layers, not 3"):
        kept_layers(2, 2, Keep.ENDS, 1)
    with pytest.raises(Unsupported, match="2 layers"):
        kept_layers(2, 3, Keep.ENDS)


# The corpus.


def test_a_corpus_is_read_as_it_was_written_and_goes_on(tmp_path: Path):
    made = {"target": "a"}
    records = [
        record([3 + index, 4], [[3, 5], [4, 5]], [[0.5, 0.25], [0.75, 0.125]], index)
        for index in range(5)
    ]
    Corpus(tmp_path, made).add(records[3:])
    Corpus(tmp_path, made).add([])
    Corpus(tmp_path, made).add(records[:3])
    # A shard that was being written when the process died.
    (tmp_path / "000002.part").write_bytes(b"half")
    found = Corpus(tmp_path, made).read()
    assert [r.index for r in found] == [0, 1, 2, 3, 4]
    for ours, theirs in zip(records, found, strict=True):
        assert (ours.prompt, ours.output, ours.seed) == (theirs.prompt, theirs.output, theirs.seed)
        assert torch.equal(ours.top_ids, theirs.top_ids)
        assert torch.equal(ours.top_logprobs, theirs.top_logprobs)
    with pytest.raises(OtherCorpus):
        Corpus(tmp_path, {"target": "b"})


def test_answers_at_both_temperatures_are_held_out():
    held_out = [i for i in range(40) if record([1], [[1]], [[0.5]], i).is_held_out]
    assert held_out == [18, 19, 38, 39]
