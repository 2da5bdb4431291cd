"""Planted faults: each is caught by a property that holds without it.

A mutated copy of a production function stands in its place while the property runs. What this
protects is the properties: a test that cannot fail protects nothing.
"""

import inspect
import itertools
import random
import sys
import textwrap

import pytest
import test_mailbox
import test_rejection
from test_rejection import Markov, assert_exact, integer_draft
from tiny import VOCAB_SIZE, save_tiny_llama

from paceline import rejection
from paceline.model.cache import SequenceCache
from paceline.model.engine import Rows
from paceline.model.load import load_model
from paceline.params import SamplingParams
from paceline.rejection import DraftDistribution
from paceline.sampling import Chooser, SamplingState, verify
from verifier_service.mailbox import Mailbox, Receipt

caught = pytest.raises(AssertionError)


def mutated(function, *changes):
    """A copy of the function with each (text, other text) changed; each text is there once."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        assert source.count(old) == 1, f"{old!r} is no longer in {function.__qualname__}"
        source = source.replace(old, new)
    made: dict[str, object] = {}
    exec(source, vars(sys.modules[function.__module__]), made)
    return made[function.__name__]


def the_law_is_exact():
    for seed in range(2):
        assert_exact(Markov(3, seed, zeros=0.3), integer_draft(3, seed, zeros=0.3), 3)


def test_accepting_at_a_threshold_of_zero(monkeypatch):
    monkeypatch.setattr(rejection, "uniform", lambda *_: 0.0)
    test_rejection.test_disjoint_supports_accept_nothing()
    broken = mutated(rejection.verify_block, ("< threshold", "<= threshold"))
    monkeypatch.setattr(test_rejection, "verify_block", broken)
    with caught:
        test_rejection.test_disjoint_supports_accept_nothing()


def test_recovering_from_the_target_and_not_from_the_residual(monkeypatch):
    monkeypatch.setattr(test_rejection, "residual_distribution", lambda row, weight, q: row)
    with caught:
        the_law_is_exact()


def test_verifying_against_a_renormalised_draft_distribution(monkeypatch):
    """q cut to the tokens that the target allows, as if the drafter had known them."""

    def cut(row, q):
        allowed = row[q.token_ids] > 0
        return DraftDistribution(q.token_ids[allowed], q.weights[allowed])

    def cut_all(rows, distributions):
        return [cut(row, q) for row, q in zip(rows, distributions, strict=False)]

    the_law_is_exact()
    for name, broken in {
        "prefix_weights": lambda rows, tokens, qs: rejection.prefix_weights(
            rows, tokens, cut_all(rows, qs)
        ),
        "thresholds": lambda rows, weights, qs: rejection.thresholds(
            rows, weights, cut_all(rows, qs)
        ),
        "residual_distribution": lambda row, weight, q: rejection.residual_distribution(
            row, weight, cut(row, q)
        ),
    }.items():
        monkeypatch.setattr(test_rejection, name, broken)
    with caught:
        the_law_is_exact()


def test_stopping_at_the_first_failure_of_a_block(monkeypatch):
    accepts = "            num_accepted = index\n"
    broken = mutated(
        rejection.verify_block, (accepts, f"{accepts}        else:\n            break\n")
    )
    monkeypatch.setattr(test_rejection, "verify_block", broken)
    with caught:
        test_rejection.test_the_drawn_law_is_the_enumerated_one()


def test_fresh_noise_on_a_replay(monkeypatch):
    calls = itertools.count()
    monkeypatch.setattr(rejection, "_rekeyed", lambda seed, base: next(calls))
    with caught:
        test_rejection.test_a_replay_gives_the_same_tokens()


def decoded(model, prompt, draft_tokens):
    """24 greedy tokens with random blocks of up to this many draft tokens."""
    rng = random.Random(5)
    chooser, greedy = Chooser(model.vocab_size), SamplingParams(temperature=0.0)
    state = SamplingState(greedy, 0, prompt, vocab_size=model.vocab_size)
    cache = model.new_cache()
    model.forward([Rows(cache, prompt[:-1], 0)])
    last = prompt[-1]
    while len(state.output) < 24:
        draft = [rng.randrange(model.vocab_size) for _ in range(rng.randint(0, draft_tokens))]
        rows = Rows(cache, [last, *draft], len(draft) + 1)
        verdict = verify(chooser, model.forward([rows]), draft, state)
        cache.rollback(cache.length - len(draft) + verdict.num_accepted)
        last = verdict.token_ids[-1]
    cache.free()
    return state.output[:24]


def test_keeping_the_keys_of_rejected_tokens(monkeypatch, tmp_path):
    model = load_model(str(save_tiny_llama(tmp_path)), dtype="float32", max_sequences=2)
    prompt = random.Random(4).choices(range(VOCAB_SIZE), k=20)

    def speculation_changes_no_token():
        assert decoded(model, prompt, 6) == decoded(model, prompt, 0)

    speculation_changes_no_token()
    monkeypatch.setattr(SequenceCache, "rollback", lambda self, length: None)
    with caught:
        speculation_changes_no_token()


def test_taking_blocks_of_any_epoch(monkeypatch):
    def old_blocks_stay_out():
        mailbox = Mailbox(10, 100, 8)
        under_way = test_mailbox.block(mailbox, [1, 2], base=11)
        mailbox.commit([9])
        assert mailbox.offer(under_way) is Receipt.STALE
        assert len(mailbox) == 0

    old_blocks_stay_out()
    broken = mutated(
        Mailbox.offer, ("block.epoch < self.epoch", "False"), ("block.epoch > self.epoch or", "")
    )
    monkeypatch.setattr(Mailbox, "offer", broken)
    with caught:
        old_blocks_stay_out()
    with caught:
        test_mailbox.test_a_disagreeing_commit_opens_an_epoch_that_old_blocks_cannot_enter()
