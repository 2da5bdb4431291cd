"""The prompts of `paceline compare`: built-in ones, or a file with one JSON object per line."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    workload: str = ""
    system: str = ""


class BadPrompts(Exception):
    """A prompt file that cannot be used; the message names the line."""


_NOTICE = (
    "The library on Mill Street closes for repairs on Monday, 3 March. The roof lets in rain, and "
    "the heating has failed twice this winter. While the builders are at work, borrowed books may "
    "be returned to the library on Station Road, which opens an hour earlier than usual. Reading "
    "groups meet in the town hall. The library on Mill Street opens again on Tuesday, 1 April."
)
_CODE = (
    "def total_price(items):\n"
    "    total = 0\n"
    "    for item in items:\n"
    "        total = total + item.price * item.quantity\n"
    "    return total\n"
)
_ORDERS = (
    "order 1041: 2 lamps, paid, shipped\n"
    "order 1042: 1 chair, paid, not shipped\n"
    "order 1043: 4 plates, not paid, not shipped\n"
)

# From texts that repeat their prompt, which lookups draft well, to texts that do not.
BUILT_IN = (
    Prompt(f"Summarise this notice in three sentences.\n\n{_NOTICE}", "summarisation"),
    Prompt(f"Write this function again, with type hints and a docstring.\n\n{_CODE}", "coding"),
    Prompt(f"Write these orders as a JSON list.\n\n{_ORDERS}", "extraction"),
    Prompt("Explain to a child why the sky is blue and the evening sky is red.", "qa"),
    Prompt("A customer's parcel arrived broken. Write a short, friendly reply.", "support"),
    Prompt("Tell a short story about a lighthouse keeper who finds a map.", "writing"),
)


def read_prompts(path: Path) -> list[Prompt]:
    """Lines such as {"prompt": "...", "workload": "coding", "system": "..."}; raises BadPrompts."""
    prompts = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadPrompts(f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            prompts.append(_prompt(line, f"{path}, line {number}"))
    if not prompts:
        raise BadPrompts(f"{path} holds no prompts")
    return prompts


def _prompt(line: str, where: str) -> Prompt:
    try:
        given = json.loads(line)
    except json.JSONDecodeError as error:
        raise BadPrompts(f"{where}: not JSON ({error.msg})") from None
    if not isinstance(given, dict) or not given.get("prompt"):
        raise BadPrompts(f"{where}: an object with a prompt is needed")
    unknown = given.keys() - {"prompt", "workload", "system"}
    if unknown:
        raise BadPrompts(f"{where}: unknown field {sorted(unknown)[0]}")
    if not all(isinstance(value, str) for value in given.values()):
        raise BadPrompts(f"{where}: every field is text")
    return Prompt(given["prompt"], given.get("workload", ""), given.get("system", ""))
