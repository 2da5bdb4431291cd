"""Inductor's trial of the processor's instructions is skipped only where it has passed before."""

import pytest
import torch._inductor.config

from paceline.model import compiled


class Isa:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


@pytest.fixture
def machine(monkeypatch):
    """A processor with `best` of two sets of instructions, and a compiler that builds for it."""
    monkeypatch.setattr(compiled, "supported_vec_isa_list", [Isa("best plain"), Isa("plain")])
    monkeypatch.setattr(compiled, "x86_isa_checker", lambda: ["plain", "best"])
    monkeypatch.setattr(compiled, "get_compiler_version_info", lambda compiler: "new")
    monkeypatch.setattr(compiled, "pick_vec_isa", lambda: Isa("best plain"))
    return monkeypatch


def trusted(folder) -> bool:
    with compiled._instructions_tried(folder):
        return torch._inductor.config.cpp.vec_isa_ok is True


def test_a_second_start_tries_nothing_out(machine, tmp_path):
    assert [trusted(tmp_path), trusted(tmp_path)] == [False, True]


def test_an_old_compiler_is_tried_out_at_every_start(machine, tmp_path):
    machine.setattr(compiled, "pick_vec_isa", lambda: Isa("plain"))
    assert [trusted(tmp_path), trusted(tmp_path)] == [False, False]


def test_another_compiler_is_tried_out_again(machine, tmp_path):
    assert not trusted(tmp_path)
    machine.setattr(compiled, "get_compiler_version_info", lambda compiler: "old")
    assert not trusted(tmp_path)


def test_a_compile_that_fails_is_no_trial_passed(machine, tmp_path):
    with pytest.raises(RuntimeError), compiled._instructions_tried(tmp_path):
        raise RuntimeError
    assert not trusted(tmp_path)
