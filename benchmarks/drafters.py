"""Which draft tokens pay, by category and source: a simulation on recorded answers.

Every recorded answer is decoded again, round by round, with the verifier's own sources and trie;
what the target would have said is known from the recording. Prints tokens per round as tables,
then one line of JSON. Makes the recording first if there is none (`record.py`, some minutes).
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.lookup.confidence import Confidences
from paceline.lookup.guesses import Bucket
from paceline.lookup.priors import GREEDY, SAMPLED
from paceline.lookup.recycling import Top
from paceline.lookup.thoughts import Thoughts
from paceline.lookup.trie import Tree
from paceline.lookup.warm_table import shipped_table
from paceline.params import SamplingParams
from paceline.rounds import TokenSource
from verifier_service.sources import (
    DEFAULT_SOURCES,
    PROMPT_LOOKUP,
    RECYCLED,
    Chain,
    Sources,
    Stores,
)

ROWS = (8, 16, 32)
TEMPERATURES = (0.0, 0.8)
BRANCH_BLOCK = 32
ALONE = {"prompt_lookup": (PROMPT_LOOKUP,), "recycled": (RECYCLED,), "all": DEFAULT_SOURCES}
# Tokens per round, at most 16 rows.
AIMS = {0.0: 2.2, 0.8: 1.5}
NO_CHAIN = Chain()

# A line of the recording.
Answer = dict[str, Any]


def cache_folder() -> Path:
    """As paceline.model.load has it, which would load torch."""
    named = os.environ.get("PACELINE_CACHE")
    return Path(
        named or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "paceline")
    )


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


def decode(
    answer: Answer,
    names: Sequence[str],
    stores: Stores,
    max_rows: int,
    confidences: Confidences | None,
) -> Count:
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
        branch_block=BRANCH_BLOCK,
        confidences=confidences,
    )
    tops = [Top(*top) for top in zip(answer["top_ids"], answer["top_logprobs"], strict=True)]
    count, start = Count(), 0
    while start < len(output):
        tree = sources.trie(NO_CHAIN, len(output) - start - 1).pick(max_rows - 1)
        path = accepted_path(tree, output[start:])
        end = min(start + len(path) + 1, len(output))
        token_ids += output[start:end]
        # Of the rows that did not stand nothing was recorded.
        stood = output[start : end - 1]
        unknown = [TokenSource.UNSPECIFIED] * len(stood)
        thoughts = Thoughts(stood, range(-1, len(stood) - 1), unknown, tops[start:end])
        sources.committed(output[start:end], thoughts)
        count.rounds += 1
        count.tokens += end - start
        for node in path:
            source = tree.sources[node]
            count.accepted[source] = count.accepted.get(source, 0) + 1
        start = end
    sources.finished()
    return count


def simulate(
    answers: Iterable[Answer],
    names: Sequence[str],
    max_rows: int,
    stores: Stores | None = None,
    confidences: Confidences | None = None,
) -> dict[str, Count]:
    """By category, one answer after the other, as a verifier that has just started."""
    stores = stores or Stores()
    counts: dict[str, Count] = {}
    for answer in answers:
        count = decode(answer, names, stores, max_rows, confidences)
        counts.setdefault(answer["category"], Count()).add(count)
    return counts


def pooled(counts: dict[str, Count]) -> Count:
    total = Count()
    for count in counts.values():
        total.add(count)
    return total


def table(title: str, columns: dict[str, dict[str, Count]]) -> list[str]:
    """Tokens per round, a row per category and a last one of all together."""
    lines = [f"{title:24}" + "".join(f"{name:>16}" for name in columns)]
    categories = sorted({category for counts in columns.values() for category in counts})
    for category in categories:
        cells = (counts[category].tokens_per_round for counts in columns.values())
        lines.append(f"{category:24}" + "".join(f"{cell:16.2f}" for cell in cells))
    cells = (pooled(counts).tokens_per_round for counts in columns.values())
    return [*lines, f"{'all':24}" + "".join(f"{cell:16.3f}" for cell in cells), ""]


def bench(answers: Sequence[Answer]) -> dict[str, Any]:
    """Print the tables; the figures for the last line."""
    figures: dict[str, Any] = {}
    holds: dict[str, bool] = {}
    warm = shipped_table(*(answers[0][name] for name in ("model", "tokenizer", "vocab_size")))
    for temperature in TEMPERATURES:
        some = [answer for answer in answers if answer["temperature"] == temperature]
        columns: dict[str, dict[str, Count]] = {}
        for name, names in ALONE.items():
            print(f"T {temperature:g}: {name}", file=sys.stderr)
            columns[name] = simulate(some, names, ROWS[1], Stores(warm))
        columns["without table"] = simulate(some, DEFAULT_SOURCES, ROWS[1])
        print("\n".join(table(f"T {temperature:g}, {ROWS[1]} rows", columns)), flush=True)
        rows = {f"{ROWS[1]} rows": columns["all"]}
        for count in (ROWS[0], ROWS[2]):
            print(f"T {temperature:g}: {count} rows", file=sys.stderr)
            rows[f"{count} rows"] = simulate(some, DEFAULT_SOURCES, count, Stores(warm))
        print("\n".join(table(f"T {temperature:g}, all sources", rows)), flush=True)
        total = pooled(columns["all"])
        figures[f"T {temperature:g}"] = {
            "tokens_per_round": {
                name: round(pooled(c).tokens_per_round, 3)
                for name, c in {**columns, **rows}.items()
            },
            "by_category": {k: round(c.tokens_per_round, 2) for k, c in columns["all"].items()},
            "accepted_by_source": {k.name.lower(): n for k, n in total.accepted.items()},
        }
        holds[f"T {temperature:g}: at least {AIMS[temperature]}"] = (
            total.tokens_per_round >= AIMS[temperature]
        )
        holds[f"T {temperature:g}: one trie at least the better source, every category"] = all(
            columns["all"][category].tokens_per_round
            >= max(columns[name][category].tokens_per_round for name in ALONE)
            for category in columns["all"]
        )
    support = [a for a in answers if a["category"] == "support" and a["temperature"] == 0.0]
    stores = Stores(warm)
    lookup = pooled(simulate(support, (PROMPT_LOOKUP,), ROWS[1])).tokens_per_round
    once, again = (
        pooled(simulate(support, DEFAULT_SOURCES, ROWS[1], stores)).tokens_per_round
        for _ in range(2)
    )
    print(f"support, T 0: prompt lookup {lookup:.2f}, once {once:.2f}, asked again {again:.2f}")
    holds["support at first at least prompt lookup"] = once >= lookup
    holds["support asked again at least 5"] = again >= 5.0
    return {
        **figures,
        "support": {"lookup": round(lookup, 2), "once": round(once, 2), "again": round(again, 2)},
        "holds": holds,
    }


def priors(answers: Sequence[Answer]) -> dict[str, dict[Bucket, float]]:
    """How often each kind of guess is right, prompts asked twice: for paceline/lookup/priors.py."""
    found = {}
    for name, temperature in (("GREEDY", 0.0), ("SAMPLED", 0.8)):
        some = [answer for answer in answers if answer["temperature"] == temperature]
        stores, seen = Stores(), Seen()
        simulate(some, DEFAULT_SOURCES, ROWS[1], stores, seen)
        # A second time only past answers are news; the rest would look better than it is.
        seen.only = "past"
        simulate(some, DEFAULT_SOURCES, ROWS[1], stores, seen)
        found[name] = seen.priors()
    return found


class Seen(Confidences):
    """Confidences that also remember every guess."""

    def __init__(self) -> None:
        super().__init__({**GREEDY, **SAMPLED})
        self.only = ""
        self._right: Counter[Bucket] = Counter()
        self._all: Counter[Bucket] = Counter()

    def learn(self, bucket: Bucket, *, right: bool) -> None:
        super().learn(bucket, right=right)
        if self.only and bucket[0] != self.only:
            return
        self._right[bucket] += right
        self._all[bucket] += 1

    def priors(self) -> dict[Bucket, float]:
        """Of kinds seen at least 5 times, shrunk towards 0.1."""
        return {
            bucket: round((self._right[bucket] + 0.3) / (number + 3), 3)
            for bucket, number in sorted(self._all.items(), key=str)
            if number >= 5
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--recording", type=Path, default=cache_folder() / "embedded-recording.jsonl"
    )
    parser.add_argument("--priors", action="store_true", help="print priors and nothing else")
    args = parser.parse_args()
    if not args.recording.exists():
        record = [sys.executable, str(Path(__file__).parent / "record.py")]
        subprocess.run([*record, "--out", str(args.recording)], check=True)
    answers = [json.loads(line) for line in args.recording.read_text().splitlines()]
    if args.priors:
        for name, values in priors(answers).items():
            print(f"{name}: dict[Bucket, float] = {{")
            for bucket, probability in values.items():
                print(f"    {bucket!r}: {probability},".replace("'", '"'))
            print("}")
        return
    print(json.dumps(bench(answers)))


if __name__ == "__main__":
    main()
