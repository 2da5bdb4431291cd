"""A warm table from a target's own answers: the mean of what it thought after each context.

Knows no engine and no file.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log

from paceline.distill.corpus import Record
from paceline.lookup.recycling import NUM_TOP, Top, after

# Of a position's likeliest ids, how many count. The rest have next to no probability.
_NUM_COUNTED = 16


def warm_tops(records: Iterable[Record], max_contexts: int) -> dict[int, Top]:
    """The NUM_TOP likeliest ids after the contexts that were seen most often, of one token and of
    two, by their mean probability there."""
    counts: Counter[int] = Counter()
    sums: dict[int, dict[int, float]] = {}
    for record in records:
        before, last = [0, *record.prompt][-2:]
        ids = record.top_ids[:, :_NUM_COUNTED].tolist()
        logprobs = record.top_logprobs[:, :_NUM_COUNTED].tolist()
        for token_id, here, there in zip(record.output, ids, logprobs, strict=True):
            for context in (after(last), after(last, before)):
                counts[context] += 1
                _add(sums.setdefault(context, {}), here, there)
            before, last = last, token_id
    return {
        context: _top(sums[context], count)
        for context, count in counts.most_common(max_contexts)
        if len(sums[context]) >= NUM_TOP
    }


def _add(sums: dict[int, float], token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
    for token_id, logprob in zip(token_ids, logprobs, strict=True):
        sums[token_id] = sums.get(token_id, 0.0) + exp(logprob)


def _top(sums: Mapping[int, float], count: int) -> Top:
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:NUM_TOP]
    # What has underflowed in half precision is still less likely than what has not.
    logprobs = [log(max(total / count, 1e-9)) for _, total in ranked]
    return Top([token_id for token_id, _ in ranked], logprobs)
