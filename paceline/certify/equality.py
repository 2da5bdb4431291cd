"""equality/T=...: the same token ids with speculation off, on, and on among other requests."""

from collections.abc import Sequence
from dataclasses import replace

from paceline.certify.asker import Asker
from paceline.certify.check import Check
from paceline.certify.differences import Difference, differences
from paceline.events import ChatMessage, DraftPolicy, Request
from paceline.params import SamplingParams, Speculation

CROWD = 8
Prompt = str | Sequence[ChatMessage]

# Raw text, which every model takes; from texts that repeat themselves, which lookups draft well,
# to texts that do not.
BUILT_IN: tuple[Prompt, ...] = (
    "one two three four one two three four one two three four one two",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\ndef mul(a, b):\n",
    '{"id": 1, "name": "lamp", "paid": true}\n{"id": 2, "name": "chair", "paid": true}\n{"id": 3,',
    "The red door leads to the red room. The blue door leads to the blue room. The green door",
    "Question: Why is the sky blue?\nAnswer:",
    "Dear customer, thank you for your letter about the broken parcel. We",
    "The lighthouse keeper opened the old chest and found",
    "La bibliothèque ferme lundi. The library closes on Monday. La bibliothèque ouvre mardi.",
)


async def equality_check(
    asker: Asker, prompts: Sequence[Prompt], *, temperature: float, max_tokens: int, seed: int
) -> Check:
    """Raises what `Asker.ask_all` does."""
    name = f"equality/T={temperature:g}"
    on = [
        Request(
            prompt=prompt,
            params=SamplingParams(temperature=temperature, max_tokens=max_tokens),
            seed=(seed + number) % 2**64,
            draft=DraftPolicy(Speculation.FIXED),
        )
        for number, prompt in enumerate(prompts)
    ]
    off = [replace(request, draft=DraftPolicy(Speculation.OFF)) for request in on]
    # Of fewer prompts than a crowd, some come again under other seeds.
    company = [
        replace(on[number % len(on)], seed=(seed + number) % 2**64)
        for number in range(len(on), CROWD)
    ]
    plain = await asker.ask_all(f"{name}, speculation off", off, at_once=1)
    alone = await asker.ask_all(f"{name}, on", on, at_once=1)
    crowd = await asker.ask_all(f"{name}, on among {CROWD}", on + company, at_once=CROWD)
    crowd = crowd[: len(on)]
    found = {"on": differences(plain, alone), f"on among {CROWD}": differences(plain, crowd)}
    num_drafted = sum(reply.num_drafted for reply in alone + crowd)
    return Check(name, not any(found.values()), _detail(found, len(prompts), num_drafted))


def _detail(found: dict[str, list[Difference]], num_prompts: int, num_drafted: int) -> str:
    differing = {difference.index for run in found.values() for difference in run}
    detail = f"{num_prompts - len(differing)}/{num_prompts} prompts identical"
    for run, its_differences in found.items():
        if its_differences:
            detail += f"; {its_differences[0].describe('with speculation off', run)}"
    return f"{detail}; {num_drafted} draft tokens verified"
