"""paceline distill: a draft model for a target, from what the target itself says."""

import importlib
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import distill_output, flags, output
from paceline.cli.bench_inputs import writable
from paceline.cli.prompts import BadPrompts, Prompt, own_prompts, read_prompts

EXIT_FAILED = 1


class KeepChoice(StrEnum):
    ENDS = "ends"
    FIRST = "first"


class DtypeChoice(StrEnum):
    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class DeviceChoice(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


def command(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", file_okay=False, help="Where the draft model goes.")
    ],
    target: Annotated[
        str,
        typer.Option(metavar="SOURCE", help="embedded, a folder, a GGUF file or a hub id."),
    ] = "embedded",
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Chats to answer, a JSON object with messages per line, as for bench. "
            "Unset: the target writes its own questions.",
            show_default=False,
        ),
    ] = None,
    self_prompts: Annotated[
        int, typer.Option(min=20, metavar="N", help="How many questions the target writes.")
    ] = 400,
    minutes: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="M", help="Time: half for the target's answers, half for learning."
        ),
    ] = 5.0,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Learn for N steps, from all answers, however long that takes. Repeatable.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Layers of the target's that learn.")
    ] = 2,
    shared_layers: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="The target's first layers, below those: used as they are, not stored.",
        ),
    ] = 4,
    keep: Annotated[
        KeepChoice, typer.Option(help="Which learn: from both ends, or the first.")
    ] = KeepChoice.ENDS,
    draft_vocab: Annotated[
        int, typer.Option(min=16, metavar="N", help="Ids that it may propose, the likeliest.")
    ] = 8192,
    answer_tokens: Annotated[
        int, typer.Option(min=4, max=512, metavar="N", help="Longest answer of the target.")
    ] = 128,
    at_once: Annotated[
        int, typer.Option(min=1, max=256, metavar="N", help="Answers generated at once.")
    ] = 24,
    batch: Annotated[int, typer.Option(min=1, metavar="N", help="Answers per step.")] = 8,
    rate: Annotated[
        float, typer.Option(min=1e-7, max=1.0, metavar="X", help="Highest learning rate.")
    ] = 1e-3,
    seed: Annotated[
        int, typer.Option(callback=flags.uint64, metavar="N", help="Of all noise.")
    ] = 1,
    device: DeviceChoice = DeviceChoice.CPU,
    dtype: Annotated[
        DtypeChoice, typer.Option(help="To calculate in; auto: what a step is faster in.")
    ] = DtypeChoice.AUTO,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="CPU threads.")] = 2,
    with_shared: Annotated[
        bool,
        typer.Option(
            "--with-shared",
            help="Write the target's embeddings and shared layers too: needs no target later.",
        ),
    ] = False,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Answers and checkpoint. Unset: FOLDER-work beside --out.",
            show_default=False,
        ),
    ] = None,
    as_json: flags.Json = False,
) -> None:
    """Make a draft model for a target from the target's own answers.

    The target answers questions, its own or yours; a student of a few of its
    layers, upon its first ones, learns to say the same. Whatever the student
    says, answers do not change: the verifier decides every token. One answer
    in ten is never learnt from; acceptance is measured on these, from before
    the first step.

    Interrupt it at any time: the same command goes on from the last
    checkpoint. Run again when it is done, it adds answers and trains anew;
    the work folder may be removed.

    [bold]Five minutes on two cores[/bold]

      paceline distill --out draft --minutes 5

      python -m drafter_service --drafter model --model draft

    [bold]Examples[/bold]

      paceline distill --out draft --prompts own-chats.jsonl --minutes 180

      paceline distill --out draft --target ./target --device cuda
      --self-prompts 200000 --steps 20000 --batch 64 --at-once 256

    Exit codes: 1 the target cannot be distilled or there are too few answers,
    2 a bad flag, 130 interrupted.
    """
    chats = None if prompts is None else _chats(prompts)
    # Read when torch is loaded (docs/log.md, spinning threads).
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    writable(out)
    # By name, at run time: OpenMP reads its settings as torch loads.
    run = importlib.import_module("paceline.cli.distillation")
    plan = run.Plan(
        target=target,
        out=out,
        work=work or out.with_name(f"{out.name}-work"),
        chats=chats,
        num_chats=self_prompts if chats is None else len(chats),
        num_layers=layers,
        keep=run.Keep(keep.value),
        num_shared_layers=shared_layers,
        draft_vocab_size=draft_vocab,
        answer_tokens=answer_tokens,
        at_once=at_once,
        seconds=minutes * 60.0,
        steps=steps,
        batch_size=batch,
        peak_rate=rate,
        seed=seed,
        device=device.value,
        dtype=dtype.value,
        with_shared=with_shared,
    )
    try:
        with distill_output.progress() as watch:
            outcome = run.distilled(plan, watch, threads)
    except run.FAILURES as error:
        output.print_error(str(error))
        raise typer.Exit(EXIT_FAILED) from None
    document = outcome.as_json()
    _draw(out, outcome.points)
    if as_json:
        print(json.dumps({"out": str(out), **document}))
    else:
        output.console().print(distill_output.curve_table(document["points"]))
        print(distill_output.verdict(document, str(out)))


def _chats(path: Path) -> list[list[dict[str, str]]]:
    """Of a file; those that the bench asks are left out. Raises BadParameter."""
    try:
        found = read_prompts(path)
    except BadPrompts as error:
        raise typer.BadParameter(str(error), param_hint="--prompts") from None
    asked_by_bench = {prompt.messages for prompt in own_prompts()}
    kept = [prompt for prompt in found if prompt.messages not in asked_by_bench]
    if len(kept) < len(found):
        output.print_note(
            f"{len(found) - len(kept)} chats left out: `paceline bench` measures on them"
        )
    if not kept:
        raise typer.BadParameter("no chat is left to learn from", param_hint="--prompts")
    return [_messages(prompt) for prompt in kept]


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    return [{"role": m.role, "content": m.content} for m in prompt.messages]


def _draw(out: Path, points: Any) -> None:
    try:
        drawing = importlib.import_module("paceline.distill.drawing")
    except ImportError:
        output.print_note("no picture of the curve: pip install 'paceline[bench]'")
        return
    drawing.draw_curve(out / "training.png", points)
