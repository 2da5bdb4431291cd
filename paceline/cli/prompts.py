"""Prompts to measure with: a few built-in ones, or a file with one JSON object per line."""

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from paceline.events import ChatMessage


@dataclass(frozen=True, slots=True)
class Prompt:
    messages: tuple[ChatMessage, ...]
    workload: str = ""


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


def _question(text: str, workload: str) -> Prompt:
    return Prompt((ChatMessage("user", text),), workload)


# From texts that repeat their prompt, which lookups draft well, to texts that do not.
BUILT_IN = (
    _question(f"Summarise this notice in three sentences.\n\n{_NOTICE}", "summarisation"),
    _question(f"Write this function again, with type hints and a docstring.\n\n{_CODE}", "coding"),
    _question(f"Write these orders as a JSON list.\n\n{_ORDERS}", "extraction"),
    _question("Explain to a child why the sky is blue and the evening sky is red.", "qa"),
    _question("A customer's parcel arrived broken. Write a short, friendly reply.", "support"),
    _question("Tell a short story about a lighthouse keeper who finds a map.", "writing"),
)


def own_prompts() -> list[Prompt]:
    """Those that `paceline bench` asks without a file of others."""
    with resources.as_file(resources.files("paceline.bench") / "prompts.jsonl") as own:
        return read_prompts(own)


def read_prompts(path: Path) -> list[Prompt]:
    """Lines such as {"messages": [{"role": "user", "content": "..."}], "category": "coding"}.

    Other fields are for other tools. Raises BadPrompts.
    """
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
    messages = given.get("messages") if isinstance(given, dict) else None
    if not isinstance(messages, list) or not messages:
        raise BadPrompts(f"{where}: an object with a list of messages is needed")
    for message in messages:
        if not isinstance(message, dict) or not all(
            isinstance(message.get(name), str) for name in ("role", "content")
        ):
            raise BadPrompts(f"{where}: every message needs a role and a content, both text")
    category = given.get("category", "")
    if not isinstance(category, str):
        raise BadPrompts(f"{where}: category is not text")
    return Prompt(tuple(ChatMessage(m["role"], m["content"]) for m in messages), category)
