"""A result in words: whether speculation pays, and what gives it. Pure.

"Pays" and "leave it off" need the whole interval on one side of 1; anything else shows no
difference, whatever the ratio itself is.
"""

from collections.abc import Sequence
from enum import StrEnum

from paceline.bench.result import Result, Row
from paceline.bench.statistics import MIN_UNITS, Ratio
from paceline.rounds import TokenSource

# Share of the accepted tokens from which a draft model has little to add.
_LOOKUP_IS_ENOUGH = 0.9
_MAIN_SOURCE = 0.5
_LOOKUPS = (TokenSource.PROMPT_LOOKUP, TokenSource.PAST_ANSWERS, TokenSource.RECYCLED)
DRAFTED = (
    TokenSource.DRAFT_MODEL,
    TokenSource.PROMPT_LOOKUP,
    TokenSource.PAST_ANSWERS,
    TokenSource.RECYCLED,
    TokenSource.LOOKAHEAD,
    TokenSource.RANDOM,
)


class Finding(StrEnum):
    PAYS = "pays"
    COSTS = "costs"
    NOT_SHOWN = "no difference shown"


def finding(ratio: Ratio | None) -> Finding:
    if ratio is None or ratio.low is None or ratio.high is None:
        return Finding.NOT_SHOWN
    if ratio.low > 1.0:
        return Finding.PAYS
    return Finding.COSTS if ratio.high < 1.0 else Finding.NOT_SHOWN


def source_name(source: TokenSource) -> str:
    return source.name.lower().replace("_", " ")


def interval(ratio: Ratio | None, to: str = " to ") -> str:
    """Such as 1.62x (1.41 to 1.85)."""
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x"
    return f"{ratio.value:.2f}x ({ratio.low:.2f}{to}{ratio.high:.2f})"


def shares(row: Row) -> dict[TokenSource, float]:
    """Of the accepted draft tokens, by what proposed them."""
    accepted = {source: row.sources.get(source, 0) for source in DRAFTED}
    total = sum(accepted.values())
    return {source: count / total for source, count in accepted.items() if count}


def category_verdict(row: Row) -> str:
    """One line, such as: speculation pays 1.62x (1.41 to 1.85); prompt lookup gave 96% ..."""
    found = finding(row.speed_up)
    shown = interval(row.speed_up)
    if row.speed_up is None:
        return "nothing was measured"
    if not row.totals.num_drafted:
        return f"nothing was drafted, so there is nothing to judge: {shown}"
    if found is Finding.PAYS:
        text = f"speculation pays {shown}"
    elif found is Finding.COSTS:
        text = f"leave it off: {shown}"
    elif row.speed_up.low is None:
        text = f"no difference shown: {shown}, {_few(row.num_prompts)}"
    else:
        text = f"no difference shown: {shown}"
    by_share = sorted(shares(row).items(), key=lambda item: -item[1])
    if by_share and by_share[0][1] > _MAIN_SOURCE:
        source, share = by_share[0]
        text += f"; {source_name(source)} gave {share:.0%} of the accepted tokens"
    return text


def _few(num_prompts: int) -> str:
    prompts = "1 prompt is" if num_prompts == 1 else f"{num_prompts} prompts are"
    return f"{prompts} too few for an interval (at least {MIN_UNITS})"


def summary(result: Result, temperature: float) -> str:
    """One sentence for all categories at one temperature."""
    rows = result.at(temperature)
    model_drafts = any(TokenSource.DRAFT_MODEL in shares(row) for row in rows)
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(_advice(row, model_drafts), []).append(_named(row))
    parts = [
        f"{advice} {_listed(names)}"
        for advice, names in sorted(groups.items(), key=lambda item: _ORDER.index(item[0]))
    ]
    return _capitalised("; ".join(parts)) + "." if parts else "Nothing was measured."


_PAYS, _LOOKUP = "speculation pays for", "lookup is enough for"
_OFF, _NONE, _FEW = "leave it off for", "no difference shown for", "too few prompts to judge"
_ORDER = (_PAYS, _LOOKUP, _OFF, _NONE, _FEW)


def _advice(row: Row, model_drafts: bool) -> str:
    # Without a draft a difference is noise.
    found = finding(row.speed_up) if row.totals.num_drafted else Finding.NOT_SHOWN
    if found is Finding.COSTS:
        return _OFF
    if found is Finding.NOT_SHOWN:
        return _FEW if row.num_prompts < MIN_UNITS else _NONE
    # Worth saying only where a draft model runs that could be spared.
    by_source = shares(row)
    lookups = sum(by_source.get(source, 0.0) for source in _LOOKUPS)
    return _LOOKUP if model_drafts and lookups >= _LOOKUP_IS_ENOUGH else _PAYS


def _named(row: Row) -> str:
    name = row.category or "uncategorised prompts"
    return f"{name} ({row.speed_up.value:.2f}x)" if row.speed_up else name


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def overall(result: Result, temperature: float) -> str:
    """One line for all prompts at one temperature."""
    row = result.overall(temperature)
    return f"All {row.num_prompts} prompts at temperature {temperature:g}: {category_verdict(row)}."


def trust(result: Result) -> list[str]:
    """Whether the answers were equal, and what makes the figures doubtful; a sentence each."""
    lines = [_equality(result)]
    if result.errors:
        failed = ", ".join(
            f"{count} {arm.value} {error}" for (arm, error), count in sorted(result.errors.items())
        )
        lines.append(f"Requests that failed and are in no figure but this: {failed}.")
    past = sum(row.sources.get(TokenSource.PAST_ANSWERS, 0) for row in result.rows)
    if past:
        lines.append(
            "Some accepted tokens come from past answers; prompts that were answered before, in "
            "this run or an earlier one, flatter them."
        )
    return lines


def _equality(result: Result) -> str:
    differing = result.num_pairs - result.num_identical
    if not result.num_pairs:
        return "No pair of answers is complete."
    if differing:
        return f"{differing} of {result.num_pairs} pairs DIFFER: speculation changed the answer."
    return f"Identical token ids in {result.num_identical} of {result.num_pairs} pairs."
