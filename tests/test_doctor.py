"""paceline doctor: what it says of a machine and a model, and how it ends when it can say less."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import save_tiny_llama
from typer.testing import CliRunner

from paceline.cli import diagnosis, main
from paceline.model.numerics import NotExact


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> str:
    """Those that torch has; what the command sets in this process is set back."""
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    return str(torch.get_num_threads())


def test_a_sound_machine_is_described_in_one_document(tmp_path: Path):
    folder = str(save_tiny_llama(tmp_path))
    command = [sys.executable, "-m", "paceline.cli.main", "doctor", "--model", folder]
    done = subprocess.run(
        [*command, "--dtype", "float32", "--threads", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["exact"] is True and found["reason"] == ""
    assert found["torch"] == torch.__version__
    assert (found["threads"], found["dtype"]) == (1, "float32")
    assert found["model"] == tmp_path.name
    assert found["comparisons"] > 0
    assert found["shapes"]["key_multiple"] % 32 == 0
    assert 1 <= found["shapes"]["linear_min_rows"] < found["shapes"]["linear_max_rows"]
    assert {"avx512_bf16", "amx_bf16"} <= found["cpu_flags"].keys()
    assert set(found["step_ms"]) == {"1", "8", "32"}
    assert all(ms > 0 for ms in found["step_ms"].values())
    assert done.stderr == "loading and checking the model\n"


def test_a_model_whose_bits_depend_on_its_batch_is_not_exact(
    tmp_path: Path, threads: str, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: object) -> None:
        raise NotExact("the self-check found no shape")

    monkeypatch.setattr(diagnosis, "make_exact", refuse)
    folder = str(save_tiny_llama(tmp_path))
    flags = ["--model", folder, "--dtype", "float32", "--threads", threads]
    done = CliRunner().invoke(main.app, ["doctor", *flags, "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["exact"] is False and found["shapes"] is None
    assert found["reason"] == "the self-check found no shape"
    assert set(found["step_ms"]) == {"1", "8", "32"}
    shown = CliRunner().invoke(main.app, ["doctor", *flags])
    assert shown.exit_code == 1
    assert shown.stdout.endswith("not exact: the self-check found no shape\n")
    assert "step, 1 row " in shown.stdout and "step, 32 rows" in shown.stdout


def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_code_1(threads: str):
    done = CliRunner().invoke(main.app, ["doctor", "--model", "/nonexistent", "--threads", threads])
    assert done.exit_code == 1
    assert done.stdout == ""
    assert "paceline: model /nonexistent: not a folder" in done.stderr
