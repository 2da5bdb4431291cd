"""Distilling a tiny target: interrupted and resumed, loaded, drafting, served without a trace."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from answers import ask_all, chat_prompts
from in_process import services
from safetensors.torch import load_file
from tiny import EOS, VOCAB_SIZE, save_tiny_llama
from typer.testing import CliRunner, Result

from drafter_service.config import DrafterSettings
from drafter_service.model import ModelDrafter
from drafter_service.state import DraftState, open_state
from drafter_service.updates import Attach, Limits
from paceline.cli import main
from paceline.distill.corpus import Corpus, Record
from paceline.distill.recipe import Outcome, Plan, distill
from paceline.distill.student import Keep
from paceline.model.distilled import DRAFT_VOCAB, read_draft_vocab
from paceline.model.engine import Rows
from paceline.model.load import LoadError, load_model
from paceline.params import SamplingParams, Speculation
from paceline.rounds import TokenSource
from paceline.sampling import Chooser, SamplingState

CONTEXT = 512


class Watch:
    """Interrupts after so many calls of a kind."""

    def __init__(self, interrupt: str = "", after: int = 0) -> None:
        self._interrupt, self._after = interrupt, after

    def _count(self, kind: str) -> None:
        if kind == self._interrupt:
            self._after -= 1
            if self._after == 0:
                raise KeyboardInterrupt

    def phase(self, name: str) -> None:
        self._count("phase")

    def generated(self, num_tokens: int, fraction: float) -> None:
        self._count("generated")

    def stepped(self, progress: float, loss: float) -> None:
        self._count("stepped")

    def measured(self, point: Any) -> None:
        self._count("measured")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("target"))


def plan(target: Path, folder: Path, **changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "target": str(target),
        "out": folder / "draft",
        "work": folder / "work",
        "chats": None,
        "num_chats": 20,
        "num_layers": 1,
        "keep": Keep.ENDS,
        "num_shared_layers": 0,
        "draft_vocab_size": 200,
        "answer_tokens": 10,
        "at_once": 8,
        "seconds": 1.0,
        "steps": 24,
        "batch_size": 4,
        "peak_rate": 3e-3,
        "seed": 1,
        "device": "cpu",
        "dtype": "float32",
        "with_shared": False,
    }
    return Plan(**(settings | changes))


@pytest.fixture(scope="module")
def distilled(target: Path, tmp_path_factory) -> tuple[Plan, Outcome]:
    made = plan(target, tmp_path_factory.mktemp("distilled"))
    return made, distill(made, Watch())


def curve(outcome: Outcome) -> list[dict[str, Any]]:
    """Without the seconds, which no two runs share."""
    return [asdict(replace(point, seconds=0.0)) for point in outcome.points]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def records(made: Plan) -> list[Record]:
    folder = made.work / "corpus"
    return Corpus(folder, json.loads((folder / "corpus.json").read_text())).read()


def test_an_interrupted_run_ends_where_an_uninterrupted_one_does(
    target: Path, tmp_path: Path, distilled: tuple[Plan, Outcome]
):
    whole_plan, whole = distilled
    again = plan(target, tmp_path)
    for kind, after in (("generated", 45), ("stepped", 9), ("measured", 3)):
        with pytest.raises(KeyboardInterrupt):
            distill(again, Watch(kind, after))
    assert len(records(again)) > 0
    resumed = distill(again, Watch())
    assert resumed.resumed and not whole.resumed
    assert [r.output for r in records(again)] == [r.output for r in records(whole_plan)]
    assert curve(resumed) == curve(whole)
    assert weights(again.out) == weights(whole_plan.out)
    # Once more is nothing to do; other settings are another run, from the same answers.
    assert distill(again, Watch("generated", 1)).points == resumed.points
    assert not distill(replace(again, peak_rate=1e-3, steps=1), Watch("generated", 1)).resumed


def test_a_student_comes_nearer_to_its_target(distilled: tuple[Plan, Outcome]):
    made, outcome = distilled
    first, last = outcome.points[0], outcome.points[-1]
    assert last.held_out_loss < first.held_out_loss
    assert last.step == made.steps and last.progress == 1.0
    assert outcome.num_held_out == sum(r.is_held_out for r in records(made))
    assert json.loads((made.out / "training.json").read_text()) == json.loads(
        json.dumps([asdict(point) for point in outcome.points])
    )


def opened(folder: Path) -> ModelDrafter:
    return ModelDrafter(load_model(str(folder), dtype="float32", numerics="fast"))


def follow(drafter: ModelDrafter, token_ids: list[int], prompt: int, record: Record) -> DraftState:
    params = SamplingParams(temperature=record.temperature)
    state = open_state(
        Attach(1, 1, token_ids, prompt, params, record.seed, 1, 1),
        Limits(VOCAB_SIZE, CONTEXT, CONTEXT, 1, drafter.eos_token_ids),
    )
    assert isinstance(state, DraftState)
    drafter.attach(state)
    return state


def test_what_is_reported_as_accepted_is_what_the_drafter_proposes(
    distilled: tuple[Plan, Outcome],
):
    made, outcome = distilled
    drafter = opened(made.out)
    vocab = read_draft_vocab(made.out)
    assert vocab is not None and len(vocab.token_ids) == 200 and EOS in vocab.token_ids
    matches: dict[float, list[bool]] = {0.0: [], 1.0: []}
    for record in (record for record in records(made) if record.is_held_out):
        for index, token_id in enumerate(record.output):
            so_far = [*record.prompt, *record.output[:index]]
            state = follow(drafter, so_far, len(record.prompt), record)
            ((proposed,),) = drafter.extend([state])
            assert proposed in vocab.token_ids
            matches[record.temperature].append(proposed == token_id)
            drafter.detach(state)
    last = outcome.points[-1]
    assert last.match_t0 == pytest.approx(sum(matches[0.0]) / len(matches[0.0]))
    assert last.match_t1 == pytest.approx(sum(matches[1.0]) / len(matches[1.0]))


def test_a_student_of_all_layers_and_ids_says_what_its_target_says(target: Path, tmp_path: Path):
    made = plan(target, tmp_path, num_layers=2, draft_vocab_size=VOCAB_SIZE, peak_rate=1e-12)
    outcome = distill(replace(made, steps=1), Watch())
    assert outcome.points[0].match_t0 == outcome.points[0].match_t1 == 1.0
    assert outcome.coverage == 1.0
    logits = []
    for folder in (target, made.out):
        model = load_model(str(folder), dtype="float32", numerics="fast")
        cache = model.new_cache()
        logits.append(model.forward([Rows(cache, [5, 6, 7], 3)])[:, : model.vocab_size])
    assert torch.allclose(*logits, atol=1e-4)


def test_embeddings_come_from_the_target_or_from_the_folder_and_from_nowhere_else(
    target: Path, tmp_path: Path, distilled: tuple[Plan, Outcome]
):
    made, outcome = distilled
    whole = plan(target, tmp_path, with_shared=True, steps=1)
    assert distill(whole, Watch()).weights_bytes > outcome.weights_bytes
    file = whole.out / DRAFT_VOCAB
    named = json.loads(file.read_text())
    file.write_text(json.dumps(named | {"target": "/nowhere"}))
    load_model(str(whole.out), dtype="float32", numerics="fast")
    other = save_tiny_llama(tmp_path / "other", seed=5)
    file = made.out / DRAFT_VOCAB
    named = file.read_text()
    try:
        for changes, why in (
            ({"target": str(other)}, "another model"),
            ({"target": "/nowhere"}, "not a folder"),
            ({"token_ids": [1, VOCAB_SIZE]}, "does not know"),
            ({"token_ids": []}, "at least one id"),
            ({"token_ids": "many"}, "cannot be read"),
            ({"layers": [0, 1]}, "does not name the layers"),
        ):
            file.write_text(json.dumps(json.loads(named) | changes))
            with pytest.raises(LoadError, match=why):
                load_model(str(made.out), dtype="float32", numerics="fast")
    finally:
        file.write_text(named)


def test_shared_layers_stay_the_targets_and_are_not_stored(target: Path, tmp_path: Path):
    made = plan(target, tmp_path, num_layers=1, num_shared_layers=1, steps=6)
    outcome = distill(made, Watch())
    assert outcome.layers == [0, 1]
    stored = load_file(made.out / "model.safetensors")
    assert any(".1." in name for name in stored) and not any(".0." in name for name in stored)
    # The same with everything in its folder; the whole target is what the first layer comes from.
    whole = replace(made, out=tmp_path / "whole", with_shared=True)
    assert distill(whole, Watch()).weights_bytes > outcome.weights_bytes
    theirs, ours = (
        load_file(target / "model.safetensors"),
        load_file(whole.out / "model.safetensors"),
    )
    for layer in (0, 1):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        assert torch.equal(ours[name], theirs[name].to(ours[name].dtype)) == (layer == 0)
    logits = []
    for folder in (made.out, whole.out):
        model = load_model(str(folder), dtype="float32", numerics="fast")
        logits.append(model.forward([Rows(model.new_cache(), [5, 6, 7], 3)]))
    assert torch.equal(*logits)


def test_noise_for_the_draft_vocabulary_alone_chooses_the_same():
    generator = torch.Generator().manual_seed(3)
    dense, sparse = Chooser(VOCAB_SIZE), Chooser(VOCAB_SIZE, is_sparse=True)
    for seed in range(50):
        logits = torch.randn(VOCAB_SIZE, generator=generator)
        logits[torch.randperm(VOCAB_SIZE, generator=generator)[:250]] = float("-inf")
        state = SamplingState(SamplingParams(), seed, [1], vocab_size=VOCAB_SIZE)
        assert sparse.choose(logits, state) == dense.choose(logits, state)


async def test_served_text_is_that_of_plain_decoding(target: Path, distilled: tuple[Plan, Outcome]):
    made, _ = distilled
    settings = DrafterSettings(
        drafter="model", model=str(made.out), dtype="float32", threads=torch.get_num_threads()
    )
    requests = [
        {
            "prompt": prompt,
            "params": SamplingParams(temperature=temperature, max_tokens=24),
            "seed": 5,
        }
        for prompt in chat_prompts(2, max_chars=200)
        for temperature in (0.0, 1.0)
    ]
    fixed = [request | {"speculation": Speculation.FIXED} for request in requests]
    off = [request | {"speculation": Speculation.OFF} for request in requests]
    async with services(str(target), settings) as address:
        plain = await ask_all(address, off)
        drafted = await ask_all(address, fixed)
    assert [answer.token_ids for answer in drafted] == [answer.token_ids for answer in plain]
    assert sum(answer.num_drafted for answer in drafted) > 0
    assert TokenSource.DRAFT_MODEL in {source for answer in drafted for source in answer.sources}


# The command.


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch):
    """Runs the command; what it sets in this process's environment is set back."""
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    return lambda *arguments: CliRunner().invoke(main.app, ["distill", *arguments])


def test_the_command_makes_a_draft_model_and_says_what_it_reached(
    target: Path, tmp_path: Path, paceline: Callable[..., Result]
):
    chats = tmp_path / "chats.jsonl"
    bench = chat_prompts(1)[0]
    asked = [[{"role": m.role, "content": m.content} for m in bench]]
    asked += [[{"role": "user", "content": f"Question {n}?"}] for n in range(24)]
    chats.write_text("\n".join(json.dumps({"messages": messages}) for messages in asked))
    out = tmp_path / "draft"
    flags = [f"--out={out}", f"--target={target}", f"--prompts={chats}", "--answer-tokens=8"]
    flags += ["--steps=4", "--layers=1", "--draft-vocab=100", "--dtype=float32", "--threads=1"]
    flags += ["--shared-layers=0"]
    done = paceline(*flags, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["out"], found["num_answers"]) == (str(out), 24)
    assert [point["step"] for point in found["points"]] == [0, 1, 2, 3, 4]
    assert found["layers"] == [0] and found["draft_vocab_size"] == 100
    assert "1 chats left out" in done.stderr
    assert (out / "training.png").read_bytes().startswith(b"\x89PNG")
    assert found["weights_bytes"] == (out / "model.safetensors").stat().st_size


def test_a_target_that_is_not_there_or_too_little_to_learn_from_is_one_line(
    target: Path, tmp_path: Path, paceline: Callable[..., Result]
):
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "Hi."}]}\n')
    flags = ["--out", str(tmp_path / "draft"), "--prompts", str(chats), "--threads", "1"]
    flags += ["--shared-layers", "1", "--layers", "1"]
    nowhere = paceline(*flags, "--target", "/nowhere")
    assert nowhere.exit_code == 1 and "not a folder" in nowhere.stderr
    few = paceline(*flags, "--target", str(target), "--answer-tokens", "4")
    assert few.exit_code == 1 and "1 answers are too few" in few.stderr
    assert not (tmp_path / "draft").exists()
