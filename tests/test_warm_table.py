"""A warm table: what it was made of comes back, for its own model, behind what was seen."""

import json
import math
from pathlib import Path

import pytest
import torch
from answers import ask_all
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import services
from tiny import save_tiny_llama

from paceline.distill.corpus import Corpus, Record
from paceline.distill.recycled import warm_tops
from paceline.distill.table_file import FAILURES, make_table
from paceline.lookup.recycling import NUM_TOP, RecyclingTable, Top, after
from paceline.lookup.warm_table import BadTable, WarmTable, read_table, shipped_table
from paceline.model.load import identify
from paceline.params import SamplingParams, Speculation
from paceline.rounds import TokenSource
from verifier_service.sources import RECYCLED

tops = st.builds(
    Top,
    st.lists(st.integers(0, 99), min_size=NUM_TOP, max_size=NUM_TOP),
    st.lists(st.floats(-20.0, 0.0), min_size=NUM_TOP, max_size=NUM_TOP),
)
contexts = st.one_of(
    st.builds(after, st.integers(0, 2**31)),
    st.builds(after, st.integers(0, 2**31), st.integers(0, 2**31)),
)


@settings(deadline=None, max_examples=50)
@given(known=st.dictionaries(contexts, tops, max_size=5))
def test_a_file_gives_back_what_was_written(tmp_path_factory, known):
    path = tmp_path_factory.mktemp("table") / "it"
    WarmTable("a model", "a tokenizer", known).write(path)
    table = read_table(path, "a tokenizer", 100)
    assert (table.model, len(table)) == ("a model", len(known))
    for context, top in known.items():
        found = table.get(context)
        assert list(found.token_ids) == list(top.token_ids)
        assert found.logprobs == pytest.approx([max(p, -255 / 16) for p in top.logprobs], abs=0.04)
    assert table.get(after(2**31 + 1)) is None


ONE = {after(5): Top(range(NUM_TOP), [-1.0] * NUM_TOP)}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda content: content.replace(b'"t"', b'"u"'), "another tokenizer"),
        (lambda content: content.replace(b'"format": 1', b'"format": 2'), "format 2"),
        (lambda content: content.replace(b'"contexts": 1', b'"contexts": 2'), "bytes instead of"),
        (lambda content: content[:-3], "no recycling table"),
        (lambda content: b"\xff" + content, "no recycling table"),
        (lambda content: b"", "no recycling table"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, spoil, says):
    path = tmp_path / "it"
    WarmTable("m", "t", ONE).write(path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(BadTable, match=says):
        read_table(path, "t", 100)


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
    WarmTable("m", "t", ONE).write(tmp_path / "it")
    with pytest.raises(BadTable, match="outside the vocabulary"):
        read_table(tmp_path / "it", "t", NUM_TOP - 1)
    with pytest.raises(BadTable, match="no recycling table"):
        read_table(tmp_path / "none", "t", 100)


def test_what_was_seen_comes_before_what_was_shipped():
    warm = WarmTable("m", "t", {**ONE, after(5, 4): ONE[after(5)]})
    table = RecyclingTable(warm=warm)
    assert list(table.after_one(5).token_ids) == list(range(NUM_TOP))
    assert list(table.after_two(4, 5).token_ids) == list(range(NUM_TOP))
    table.put(4, 5, Top([50], [0.0]))
    assert list(table.after_one(5).token_ids) == [50]
    assert list(table.after_two(4, 5).token_ids) == [50]
    assert table.after_one(6) is None


def record(index, output, top_ids, probs):
    count = len(output)
    return Record(
        index=index,
        prompt=[1, 2],
        output=output,
        temperature=0.0,
        seed=0,
        top_ids=torch.tensor([top_ids] * count),
        top_logprobs=torch.tensor([[math.log(p) for p in probs]] * count),
    )


def test_a_context_has_the_mean_of_what_was_thought_there():
    many, other = list(range(10, 10 + NUM_TOP)), list(range(20, 20 + NUM_TOP))
    probs = [0.5, 0.2, *([0.01] * (NUM_TOP - 2))]
    found = warm_tops([record(0, [7], many, probs), record(1, [7], other, probs)], 10)
    assert set(found) == {after(2), after(2, 1)}
    assert list(found[after(2)].token_ids[:4]) == [10, 20, 11, 21]
    assert found[after(2)].logprobs[0] == pytest.approx(math.log(0.25))
    assert len(warm_tops([record(0, [7], many, probs)], 1)) == 1


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


async def test_a_table_of_own_answers_drafts_the_first_answer_and_changes_none(tiny, tmp_path):
    requests = [
        {
            "prompt": prompt,
            "params": SamplingParams(max_tokens=24, temperature=temperature),
            "seed": 3,
            "speculation": Speculation.FIXED,
        }
        for prompt in (list(range(3, 20)), list(range(30, 50)))
        for temperature in (0.0, 0.8)
    ]
    async with services(str(tiny), None, [RECYCLED]) as address:
        cold = await ask_all(address, requests, at_once=1)
    model = identify(str(tiny))
    corpus = Corpus(tmp_path / "corpus", {"target": model.model_fingerprint})
    corpus.add(
        [
            Record(
                index=index,
                prompt=list(request["prompt"]),
                output=answer.token_ids,
                temperature=0.0,
                seed=0,
                top_ids=torch.tensor([[t, *range(1, NUM_TOP)] for t in answer.token_ids]).int(),
                top_logprobs=torch.tensor([[0.0, *[-10.0] * 7]] * len(answer.token_ids)).half(),
            )
            for index, (request, answer) in enumerate(zip(requests, cold, strict=True))
        ]
    )
    made = make_table(tmp_path, tmp_path / "it", str(tiny), 1000)
    assert made["answers"] == len(requests)
    table = str(tmp_path / "it")
    async with services(str(tiny), None, [RECYCLED], recycling_table=table) as address:
        warm = await ask_all(address, requests, at_once=1)
    assert [answer.token_ids for answer in warm] == [answer.token_ids for answer in cold]
    first = [answers[0] for answers in (cold, warm)]
    assert len(first[1].rounds) < len(first[0].rounds)
    assert TokenSource.RECYCLED in first[1].sources


def test_answers_of_another_target_make_no_table(tiny, tmp_path):
    Corpus(tmp_path / "corpus", {"target": "another"})
    for work, says in ((tmp_path, "another target"), (tmp_path / "none", "no answers")):
        with pytest.raises(FAILURES, match=says):
            make_table(work, tmp_path / "it", str(tiny), 10)


def test_no_other_model_gets_the_table_that_is_shipped(tmp_path):
    assert shipped_table("another model", "another tokenizer", 49152) is None
    header = json.loads(_shipped().split(b"\n", 1)[0])
    assert header["model"] == "SmolLM2-135M-Instruct"
    assert shipped_table(header["model"], "another tokenizer", 49152) is None
    table = shipped_table(header["model"], header["tokenizer"], 49152)
    assert len(table) == header["contexts"] > 10_000
    assert len(_shipped()) <= 2_000_000


def _shipped():
    [path] = (Path(__file__).parent.parent / "paceline/lookup/tables").glob("*")
    return path.read_bytes()
