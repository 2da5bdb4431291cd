"""Which draft tokens pay, by category and source: a simulation on recorded answers.

Every recorded answer is decoded again, round by round, with the verifier's own sources and trie;
what the target would have said is known from the recording. Prints tokens per round as tables,
then one line of JSON. Makes the recording first if there is none (`record.py`, some minutes).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.lookup.recycling import Top
from paceline.lookup.trie import Tree
from paceline.params import SamplingParams
from paceline.rounds import TokenSource
from verifier_service.sources import (
    PAST_ANSWERS,
    PROMPT_LOOKUP,
    RECYCLED,
    SOURCES,
    Chain,
    Sources,
    Stores,
)

ROWS = (8, 16, 32)
TEMPERATURES = (0.0, 0.8)
ALONE = {"prompt_lookup": (PROMPT_LOOKUP,), "recycled": (RECYCLED,), "all": SOURCES}
NO_CHAIN = Chain()


@dataclass
class Count:
    """Rounds and what they gave."""

    rounds: int = 0
    tokens: int = 0
    accepted: dict[TokenSource, int] = field(default_factory=dict)

    @property
    def tokens_per_round(self) -> float:
        return self.tokens / self.rounds if self.rounds else 0.0

    def add(self, other: "Count") -> None:
        self.rounds += other.rounds
        self.tokens += other.tokens
        for source, number in other.accepted.items():
            self.accepted[source] = self.accepted.get(source, 0) + number


def accepted_path(tree: Tree, token_ids: Sequence[int]) -> list[int]:
    """Nodes from the root on that carry these tokens."""
    path: list[int] = []
    children = {
        (parent, token_id): index
        for index, (parent, token_id) in enumerate(zip(tree.parents, tree.token_ids, strict=True))
    }
    for token_id in token_ids:
        node = children.get((path[-1] if path else -1, token_id))
        if node is None:
            break
        path.append(node)
    return path


def decode(answer: dict[str, Any], names: Sequence[str], stores: Stores, max_rows: int) -> Count:
    """One answer in rounds of at most `max_rows` rows, that of the last token included."""
    output = answer["output"]
    token_ids = list(answer["prompt"])
    sources = Sources(
        names,
        stores,
        prompt=answer["prompt"],
        token_ids=token_ids,
        params=SamplingParams(temperature=answer["temperature"]),
        seed=answer["seed"],
        branch_block=32,
    )
    tops = [Top(*top) for top in zip(answer["top_ids"], answer["top_logprobs"], strict=True)]
    count, start = Count(), 0
    while start < len(output):
        tree = sources.trie(NO_CHAIN, len(output) - start - 1).pick(max_rows - 1)
        path = accepted_path(tree, output[start:])
        end = min(start + len(path) + 1, len(output))
        token_ids += output[start:end]
        sources.committed(output[start:end], tops[start:end])
        count.rounds += 1
        count.tokens += end - start
        for node in path:
            source = tree.sources[node]
            count.accepted[source] = count.accepted.get(source, 0) + 1
        start = end
    sources.finished()
    return count


def simulate(
    answers: Iterable[dict[str, Any]],
    names: Sequence[str],
    max_rows: int,
    stores: Stores | None = None,
) -> dict[str, Count]:
    """By category, one answer after the other, as a verifier that has just started."""
    stores = stores or Stores()
    counts: dict[str, Count] = {}
    for answer in answers:
        count = decode(answer, names, stores, max_rows)
        counts.setdefault(answer["category"], Count()).add(count)
    return counts


def pooled(counts: dict[str, Count]) -> Count:
    total = Count()
    for count in counts.values():
        total.add(count)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recording", type=Path, default=None, help="default: the cache folder")
    args = parser.parse_args()
    answers = [json.loads(line) for line in args.recording.read_text().splitlines()]
    for temperature in TEMPERATURES:
        some = [a for a in answers if a["temperature"] == temperature]
        for names in ((PROMPT_LOOKUP,), (RECYCLED,), (PAST_ANSWERS,), (PROMPT_LOOKUP,RECYCLED), SOURCES):
            t = time.time()
            r = {rows: simulate(some, names, rows) for rows in ROWS}
            print(temperature, names, {k: round(pooled(v).tokens_per_round,3) for k,v in r.items()}, {k: round(v.tokens_per_round,2) for k,v in r[16].items()}, {k.name:v for k,v in pooled(r[16]).accepted.items()}, round(time.time()-t,1), flush=True)


if __name__ == "__main__":
    main()
