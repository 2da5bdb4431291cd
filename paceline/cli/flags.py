"""Flags that several sub-commands share, with their ranges. Loads no gRPC."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from paceline.params import SamplingMode, Speculation

DEFAULT_GATEWAY = "127.0.0.1:7000"


class SpeculationChoice(StrEnum):
    AUTO = "auto"
    OFF = "off"
    FIXED = "fixed"

    @property
    def value_on_the_wire(self) -> Speculation:
        return Speculation[self.name]


class ModeChoice(StrEnum):
    COUPLED = "coupled"
    REJECTION = "rejection"

    @property
    def value_on_the_wire(self) -> SamplingMode:
        return SamplingMode[self.name]


def address(text: str) -> str:
    """HOST:PORT as it is. Raises BadParameter for anything else."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and 0 < int(port) <= 65535):
        raise typer.BadParameter(f"{text!r} is not HOST:PORT, such as {DEFAULT_GATEWAY}")
    return text


def _uint32(value: int) -> int:
    return _within_bits(value, 32)


def _uint32s(values: list[int]) -> list[int]:
    return [_uint32(value) for value in values]


def _optional_uint32(value: int | None) -> int | None:
    return None if value is None else _uint32(value)


def logit_bias(pairs: list[str]) -> dict[int, float]:
    """Token id -> bias, from words such as 262=-100. Raises BadParameter."""
    biases: dict[int, float] = {}
    for pair in pairs:
        token_id, _, bias = pair.partition("=")
        try:
            number, value = int(token_id), float(bias)
        except ValueError:
            raise typer.BadParameter(f"{pair!r} is not ID=BIAS, such as 262=-100") from None
        if number in biases:
            raise typer.BadParameter(f"token id {number} is given twice")
        biases[_uint32(number)] = _finite(value)
    return biases


def _are_biases(pairs: list[str]) -> list[str]:
    logit_bias(pairs)
    return pairs


def uint64(value: int | None) -> int | None:
    return None if value is None else _within_bits(value, 64)


def _within_bits(value: int, bits: int) -> int:
    if not 0 <= value < 2**bits:
        raise typer.BadParameter(f"must be from 0 to {2**bits - 1}")
    return value


def _finite(value: float) -> float:
    # NaN compares false with everything, so no range would catch it.
    if value != value or abs(value) == float("inf"):
        raise typer.BadParameter("must be a finite number")
    return value


Gateway = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        envvar="PACELINE_GATEWAY",
        callback=address,
        help="The gateway to ask.",
    ),
]
System = Annotated[str, typer.Option(metavar="TEXT", help="System prompt.")]
Seed = Annotated[
    int | None,
    typer.Option(
        callback=uint64,
        metavar="N",
        help="Same seed, same answer. Unset: the gateway draws one.",
        show_default=False,
    ),
]
Temperature = Annotated[
    float, typer.Option(metavar="T", callback=_finite, help="0 is greedy; else 0.01 to 100.")
]
TopP = Annotated[float, typer.Option(metavar="P", callback=_finite, help="In (0, 1]; 1 is off.")]
TopK = Annotated[int, typer.Option(callback=_uint32, metavar="K", help="0 is off.")]
MinP = Annotated[float, typer.Option(metavar="P", callback=_finite, help="In [0, 1]; 0 is off.")]
RepetitionPenalty = Annotated[
    float,
    typer.Option(metavar="X", callback=_finite, help="Above 0, of prompt and answer; 1 is off."),
]
PresencePenalty = Annotated[
    float,
    typer.Option(metavar="X", callback=_finite, help="From -2 to 2, for a token in the answer."),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(metavar="X", callback=_finite, help="From -2 to 2, each time it is there."),
]
LogitBias = Annotated[
    list[str],
    typer.Option(
        metavar="ID=BIAS",
        callback=_are_biases,
        help="Bias of a token id, from -100 (banned) to 100. May be repeated.",
    ),
]
MinTokens = Annotated[
    int,
    typer.Option(callback=_uint32, metavar="N", help="No end or stop token before this many."),
]
StopTokenIds = Annotated[
    list[int],
    typer.Option(
        "--stop-token-id",
        metavar="ID",
        callback=_uint32s,
        help="End the answer after this token. May be repeated.",
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Go on after the model's own end of the answer.")
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        "--logprobs",
        metavar="N",
        callback=_optional_uint32,
        help="With --json: log-probabilities of each token and of the N likeliest ones.",
        show_default=False,
    ),
]
Mode = Annotated[
    ModeChoice,
    typer.Option(help="coupled: speculation changes no token; rejection: not their distribution."),
]
Answers = Annotated[
    int,
    typer.Option(
        "--n", min=1, callback=_uint32, metavar="N", help="Answers, each with a seed of its own."
    ),
]
MaxTokens = Annotated[
    int,
    typer.Option(callback=_uint32, metavar="N", help="The answer's longest length."),
]
Stop = Annotated[
    list[str],
    typer.Option(metavar="TEXT", help="End the answer before this text. May be repeated."),
]
SpeculationMode = Annotated[
    SpeculationChoice,
    typer.Option(help="auto: when it pays; off: plain decoding; fixed: always."),
]
DraftTokens = Annotated[
    int,
    typer.Option(
        callback=_uint32, metavar="N", help="Longest draft block; 0: the server's default."
    ),
]
Workload = Annotated[
    str, typer.Option(metavar="LABEL", help="Label that acceptance is reported by.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RunDir = Annotated[
    Path | None,
    typer.Option(
        file_okay=False,
        help="Folder of the logs and the lock. Unset: paceline in the user's state folder.",
        show_default=False,
    ),
]
