"""The engine under pressure: whatever shares its steps and its memory, an answer stays its own.

Random arrivals, cancellations, shared prefixes, chunked prefill and a KV cache so small that
sequences are put back and computed again, on a tiny model, against each request alone.
"""

import queue
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tiny import save_tiny_llama

from paceline.model.cache import BLOCK_TOKENS
from paceline.model.load import load_model
from paceline.params import SamplingParams
from verifier_service.config import VerifierSettings
from verifier_service.engine import Engine
from verifier_service.sequence import FailedEvent, FinalEvent, Request, TokensEvent

DEADLINE_S = 60.0


class Served:
    """An engine on a thread of its own, without links to drafters."""

    def __init__(self, folder, **settings):
        self.settings = VerifierSettings(**settings)
        self.thread = ThreadPoolExecutor(1, "model")
        self.model = self.thread.submit(self._load, folder).result()
        self.engine = Engine(self.model, self.settings, self._deliver, lambda updates: None)
        self.engine.start(self.thread)

    def _load(self, folder):
        torch.set_num_threads(1)
        return load_model(
            str(folder),
            dtype="float32",
            max_sequences=self.settings.max_sequences,
            kv_tokens=self.settings.kv_tokens,
        )

    @staticmethod
    def _deliver(events):
        for sink, event in events:
            sink(event)

    def start(self, request):
        answer = Answer()
        answer.sequence = self.engine.submit(request, answer.take)
        return answer

    def close(self):
        self.engine.stop()
        self.thread.shutdown()


class Answer:
    def __init__(self):
        self.token_ids, self.failure, self.final = [], None, None
        self.prefill = None
        self.ended = threading.Event()
        self.news = queue.SimpleQueue()

    def take(self, event):
        match event:
            case TokensEvent():
                assert event.start_index == len(self.token_ids)
                self.token_ids += event.token_ids
                self.prefill = self.prefill or event.prefill
                self.news.put(len(self.token_ids))
            case FinalEvent():
                self.final = event
                self.ended.set()
            case FailedEvent():
                self.failure = event
                self.ended.set()

    def wait(self):
        assert self.ended.wait(DEADLINE_S)
        assert self.failure is None
        return self.token_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def some_request(rng, prefixes):
    prompt = [*rng.choice(prefixes), *rng.choices(range(256), k=rng.randint(1, 70))]
    params = SamplingParams(
        temperature=rng.choice([0.0, 0.9]), max_tokens=rng.randint(1, 60), ignore_eos=True
    )
    return Request(prompt=prompt, generated=[], params=params, seed=rng.randrange(2**32))


@pytest.mark.parametrize("kv_tokens", [416, 4096])
def test_an_answer_never_depends_on_arrivals_cancellations_or_preemption(folder, kv_tokens):
    rng = random.Random(kv_tokens)
    prefixes = [[], rng.choices(range(256), k=64), rng.choices(range(256), k=128)]
    requests = [some_request(rng, prefixes) for _ in range(14)]
    alone = Served(folder, max_sequences=1, kv_tokens=4096)
    expected = []
    for request in requests:
        expected.append(alone.start(request).wait())
        # Cold every time: nothing here depends on a reused block. The engine idles.
        alone.model.store.forget()
    alone.close()

    served = Served(folder, max_sequences=6, kv_tokens=kv_tokens, prefill_rows=16, step_rows=48)
    store = served.model.store
    for _ in range(2):
        answers = []
        for request in requests:
            answers.append(served.start(request))
            if rng.random() < 0.4:
                # Cancelled at some moment between its first tokens, or before any.
                victim = served.start(some_request(rng, prefixes))
                if rng.random() < 0.5:
                    victim.news.get(timeout=DEADLINE_S)
                served.engine.cancel(victim.sequence)
        assert [answer.wait() for answer in answers] == expected
    assert any(answer.prefill.num_cached_tokens for answer in answers)
    assert (served.engine.status().num_preemptions > 0) == (kv_tokens == 416)
    served.close()
    assert store.num_live == 0
    assert store.blocks_free == store.blocks_total


def test_a_shared_prompt_is_computed_once_and_reported(folder):
    served = Served(folder, max_sequences=4, kv_tokens=4096)
    rng = random.Random(5)
    prompt = rng.choices(range(256), k=150)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    first = served.start(Request(prompt=prompt, generated=[], params=params, seed=1))
    tokens = first.wait()
    again = served.start(Request(prompt=prompt, generated=[], params=params, seed=1))
    assert again.wait() == tokens
    assert first.prefill.num_cached_tokens == 0
    assert again.prefill.num_cached_tokens == 150 // BLOCK_TOKENS * BLOCK_TOKENS
    # The next turn of a conversation finds the answer, too.
    turn = [*prompt, *tokens, 1, 2, 3]
    next_turn = served.start(Request(prompt=turn, generated=[], params=params, seed=1))
    next_turn.wait()
    assert next_turn.prefill.num_cached_tokens == (150 + 39) // BLOCK_TOKENS * BLOCK_TOKENS
    other = Request(prompt=prompt, generated=[], params=params, seed=1, tenant="other")
    stranger = served.start(other)
    assert stranger.wait() == tokens
    assert stranger.prefill.num_cached_tokens == 0
    served.close()


@pytest.mark.parametrize(("max_sequences", "kv_tokens"), [(4, 320), (1, 4096)])
def test_whoever_waits_for_its_reader_makes_room_for_others(folder, max_sequences, kv_tokens):
    rng = random.Random(6)
    params = SamplingParams(temperature=0.9, max_tokens=100, ignore_eos=True)
    slow, quick = (
        Request(prompt=rng.choices(range(256), k=150), generated=[], params=params, seed=seed)
        for seed in (1, 2)
    )
    alone = Served(folder, max_sequences=1, kv_tokens=4096)
    expected = [alone.start(request).wait() for request in (slow, quick)]
    alone.close()

    served = Served(folder, max_sequences=max_sequences, kv_tokens=kv_tokens)
    paused = served.start(slow)
    served.engine.add_credit(paused.sequence, 5)
    assert served.start(quick).wait() == expected[1]
    assert not paused.ended.is_set()
    served.engine.add_credit(paused.sequence, 200)
    assert paused.wait() == expected[0]
    assert served.engine.status().num_preemptions > 0
    served.close()
    assert served.model.store.blocks_used == 0
