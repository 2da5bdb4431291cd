"""Distillation from beginning to end: answers, draft vocabulary, student, training, folder.

Everything that an interruption must not lose is in the work folder.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from transformers import AutoConfig, AutoTokenizer

from paceline.distill.chats import Message, Questions, Template
from paceline.distill.checkpoint import read_state
from paceline.distill.corpus import Corpus, Record
from paceline.distill.curve import Point, write_curve
from paceline.distill.examples import column_of, make_example
from paceline.distill.generation import Job, generate
from paceline.distill.student import Keep, kept_layers, make_student, save_student
from paceline.distill.trainer import Trainer, Training
from paceline.distill.vocabulary import coverage, expected_counts, ranked
from paceline.model.engine import LanguageModel
from paceline.model.load import load_model, resolve
from paceline.model.numerics import NotExact

# The target's share of the time; the rest is the student's.
_CORPUS_SHARE = 0.5
_SHARD_RECORDS = 16
# Prompt and answer together, of what is generated and of what is learnt from.
_MAX_CONTEXT = 768
_NUM_TOP = 32
# Measured on at most this many answers each time.
_HELD_OUT = 48


class TooFewAnswers(Exception):
    """There is nothing to learn from, or nothing to measure on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to distil, from what, into what."""

    target: str
    out: Path
    work: Path
    # Without them the target writes its own questions.
    chats: Sequence[Sequence[Message]] | None
    num_chats: int
    num_layers: int
    keep: Keep
    # Of the target's first layers, below these: used as they are.
    num_shared_layers: int
    draft_vocab_size: int
    answer_tokens: int
    at_once: int
    # Of the corpus and the training together; ignored with `steps`.
    seconds: float
    steps: int | None
    batch_size: int
    peak_rate: float
    seed: int
    device: str
    dtype: str
    with_shared: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    points: Sequence[Point]
    resumed: bool
    layers: Sequence[int]
    dtype: str
    num_answers: int
    num_answer_tokens: int
    num_held_out: int
    draft_vocab_size: int
    # Share of the held-out tokens that the draft vocabulary has.
    coverage: float
    weights_bytes: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Watch(Protocol):
    """Is told how far things are."""

    def phase(self, name: str) -> None: ...

    def generated(self, num_tokens: int, fraction: float) -> None: ...

    def stepped(self, progress: float, loss: float) -> None: ...

    def measured(self, point: Point) -> None: ...


def distill(plan: Plan, watch: Watch) -> Outcome:
    """Raises LoadError, NoTemplate, Unsupported, OtherCorpus and TooFewAnswers."""
    folder = resolve(plan.target)
    watch.phase("loading the target")
    model = _load(plan)
    num_shared = plan.num_shared_layers
    layers = kept_layers(_num_layers(folder), plan.num_layers, plan.keep, num_shared)
    corpus = Corpus(plan.work / "corpus", _description(plan, model))
    checkpoint = plan.work / "checkpoint.safetensors"
    # A training that was interrupted goes on with the answers that it had.
    if not _is_under_way(checkpoint):
        watch.phase("the target answers")
        _collect(plan, model, Template(AutoTokenizer.from_pretrained(folder)), corpus, watch)
    records = corpus.read()
    train = [record for record in records if not record.is_held_out]
    held_out = [record for record in records if record.is_held_out][:_HELD_OUT]
    if not train or not held_out:
        raise TooFewAnswers(
            f"{len(records)} answers are too few to learn from some and measure on others: "
            "give it more chats or more time"
        )
    token_ids = ranked(
        expected_counts(train, model.vocab_size),
        min(plan.draft_vocab_size, model.vocab_size),
        model.eos_token_ids,
    )
    vocab_size = model.vocab_size
    # Its memory is the student's now.
    del model
    student = make_student(folder, layers, token_ids, plan.device, num_shared)
    columns = column_of(token_ids, vocab_size)
    trainer = Trainer(
        student,
        [make_example(record, columns, _MAX_CONTEXT) for record in train],
        [make_example(record, columns, _MAX_CONTEXT) for record in held_out],
        _training(plan),
        checkpoint,
        _identity(plan, layers, token_ids, records),
    )
    watch.phase(f"the student learns, in {trainer.dtype}")
    trainer.run(watch.stepped, watch.measured)
    size = save_student(
        student,
        plan.out,
        target=plan.target,
        target_folder=folder,
        with_shared=plan.with_shared,
    )
    write_curve(plan.out / "training.json", trainer.points)
    return Outcome(
        points=trainer.points,
        resumed=trainer.resumes,
        layers=layers,
        dtype=trainer.dtype,
        num_answers=len(records),
        num_answer_tokens=sum(len(record.output) for record in records),
        num_held_out=len(held_out),
        draft_vocab_size=len(token_ids),
        coverage=coverage(held_out, token_ids),
        weights_bytes=size,
    )


def _is_under_way(checkpoint: Path) -> bool:
    state = read_state(checkpoint)
    return state is not None and state["points"][-1]["progress"] < 1.0


def _load(plan: Plan) -> LanguageModel:
    """With exact numerics, where there are, an interrupted corpus goes on as it would have."""
    dtype = "float32" if plan.dtype == "float32" else "bfloat16"
    for numerics in ("exact", "fast"):
        try:
            return load_model(
                plan.target,
                dtype=dtype,
                max_sequences=plan.at_once,
                max_context=_MAX_CONTEXT,
                numerics=numerics,
                device=plan.device,
            )
        except NotExact:
            continue
    raise AssertionError("fast numerics are never refused")


def _collect(
    plan: Plan, model: LanguageModel, template: Template, corpus: Corpus, watch: Watch
) -> None:
    """Adds answers until there are all, or the corpus's time is over."""
    there = {record.index: len(record.output) for record in corpus.read()}
    questions = Questions(
        template,
        plan.chats,
        indices=iter([index for index in range(plan.num_chats) if index not in there]),
        seed=plan.seed,
        max_tokens=plan.answer_tokens,
        max_context=model.max_context,
    )
    started = time.monotonic()
    limit = plan.seconds * _CORPUS_SHARE
    num_tokens, num_ended = sum(there.values()), len(there)
    buffer: list[Record] = []

    def elapsed() -> float:
        return 0.0 if plan.steps is not None else (time.monotonic() - started) / limit

    def next_job() -> Job | None:
        # What has been begun is ended: otherwise the corpus would lack long answers.
        return None if elapsed() >= 1.0 else questions.next()

    def on_tokens(count: int) -> None:
        nonlocal num_tokens
        num_tokens += count
        watch.generated(num_tokens, min(1.0, max(elapsed(), num_ended / plan.num_chats)))

    try:
        for job, record in generate(
            model,
            next_job,
            at_once=plan.at_once,
            num_top=_NUM_TOP,
            on_tokens=on_tokens,
        ):
            if job.is_question:
                questions.asked(record)
                num_tokens -= len(record.output)
                continue
            num_ended += 1
            buffer.append(record)
            if len(buffer) == _SHARD_RECORDS:
                corpus.add(buffer)
                buffer = []
    finally:
        corpus.add(buffer)


def _num_layers(folder: Path) -> int:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return int(config.num_hidden_layers)


def _description(plan: Plan, model: LanguageModel) -> dict[str, Any]:
    """All that the answers depend on, but for how many there are."""
    prompts = "self" if plan.chats is None else sha256(repr(plan.chats).encode()).hexdigest()
    return {
        "target": model.model_fingerprint,
        "prompts": prompts,
        "answer_tokens": plan.answer_tokens,
        "num_top": _NUM_TOP,
        "seed": plan.seed,
    }


def _training(plan: Plan) -> Training:
    return Training(
        seed=plan.seed,
        device=plan.device,
        dtype=plan.dtype,
        batch_size=plan.batch_size,
        peak_rate=plan.peak_rate,
        steps=plan.steps,
        seconds=plan.seconds * (1.0 - _CORPUS_SHARE),
    )


def _identity(
    plan: Plan, layers: Sequence[int], token_ids: Sequence[int], records: Sequence[Record]
) -> dict[str, Any]:
    return {
        "layers": list(layers),
        "shared_layers": plan.num_shared_layers,
        "token_ids": sha256(repr(list(token_ids)).encode()).hexdigest(),
        "answers": len(records),
        **asdict(_training(plan)),
    }
