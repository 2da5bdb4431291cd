"""A result as one HTML page: the verdict in words, how it was measured, figures and tables.

Self-contained: no script, no outside host. Knows no drawing; it is given the figures.
"""

from collections.abc import Mapping, Sequence
from html import escape

from paceline.bench import verdict
from paceline.bench.captions import CAPTIONS
from paceline.bench.document import Circumstances
from paceline.bench.report_style import STYLE
from paceline.bench.result import ALL, Result
from paceline.bench.tables import Table, tables
from paceline.bench.verdict import Finding


def page(result: Result, how: Circumstances, figures: Mapping[str, str]) -> str:
    """The page; `figures` are <svg> elements by name, of which some may be missing."""
    parts = [
        _verdict(result),
        *(_figure(name, figures[name], result) for name in CAPTIONS if name in figures),
        _circumstances(how),
        *(_table(table) for table in tables(result)),
    ]
    title = f"Speculation on {how.num_prompts} prompts, {how.began[:10]}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>Paceline bench: {escape(title.lower())}</h1>\n"
        + "\n".join(parts)
        + "\n</main>\n</body>\n</html>\n"
    )


def _verdict(result: Result) -> str:
    leads, tiles, details = [], [], []
    for temperature in result.temperatures:
        leads.append(
            f'<p class="lead"><small>At temperature {temperature:g}</small>'
            f"{escape(verdict.summary(result, temperature))}</p>"
        )
        row = result.overall(temperature)
        found = verdict.finding(row.speed_up)
        mood = {Finding.PAYS: "good", Finding.COSTS: "bad"}.get(found, "")
        at = f"at temperature {temperature:g}"
        tiles += [
            _tile(
                f"{row.speed_up.value:.2f}x" if row.speed_up else "-",
                f"all prompts {at}: {found.value}, {verdict.interval(row.speed_up)}",
                mood,
            ),
            _tile(
                f"{row.totals.mean_acceptance_length:.2f}",
                f"tokens per round with a draft {at}; {row.totals.acceptance_rate:.0%} of the "
                "draft tokens that were tested were accepted",
            ),
        ]
        lines = [
            f"<li><strong>{escape(row.category or 'no category')}</strong>: "
            f"{escape(verdict.category_verdict(row))}</li>"
            for row in result.at(temperature)
        ]
        details.append(
            f"<h3>By category, temperature {temperature:g}</h3>"
            f'<ul class="verdicts">{"".join(lines)}</ul>'
        )
    tiles.append(
        _tile(
            f"{result.num_identical}/{result.num_pairs}",
            "pairs with identical token ids",
            "good" if result.identical and result.num_pairs else "bad",
        )
    )
    trust = "".join(f"<p>{escape(line)}</p>" for line in verdict.trust(result))
    return (
        f"<section>{''.join(leads)}{trust}"
        f'<div class="tiles">{"".join(tiles)}</div>{"".join(details)}</section>'
    )


def _tile(value: str, words: str, mood: str = "") -> str:
    return (
        f'<div class="tile"><b class="{mood}">{escape(value)}</b><span>{escape(words)}</span></div>'
    )


def _circumstances(how: Circumstances) -> str:
    drafts = how.draft_tokens or "the server's default"
    facts: list[tuple[str, object]] = [
        ("Began", how.began),
        ("Model", how.model + (f", {how.numerics} numerics" if how.numerics else "")),
        ("Gateway", how.target),
        ("Measured from", f"{how.machine}, {how.cores} cores, Python {how.python}"),
        ("Paceline", how.paceline),
        ("Prompts", f"{how.num_prompts}, {how.prompts}"),
        ("Temperatures", ", ".join(f"{value:g}" for value in how.temperatures)),
        ("Loads", ", ".join(how.loads)),
        ("Pairs", f"{how.pairs} per prompt, temperature and load"),
        ("Answers", f"at most {how.max_tokens} tokens, seed {how.seed}"),
        ("Speculation", f"{how.speculation}, draft length {drafts}"),
        ("Warm-up", f"{how.warm_up} pairs that are not counted"),
    ]
    listed = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in facts)
    return (
        "<section><h2>How it was measured</h2>"
        '<p class="note">Every prompt is answered plain and speculative in turn, with the same '
        "seed, the arm that goes first alternating, so that other work on the machine meets both. "
        "Prompts are in the verifier's cache for both. Figures by category are of the first load. "
        "Sums are pooled; no ratio is an average of ratios.</p>"
        f"<dl>{listed}<dt>Command</dt><dd><code>{escape(how.command)}</code></dd></dl></section>"
    )


def _figure(name: str, svg: str, result: Result) -> str:
    caption = CAPTIONS[name]
    described = escape(f"{caption.title}. {caption.alternative(result)}")
    return (
        f"<section><h2>{escape(caption.title)}</h2>"
        f'<p class="note">{escape(caption.explanation)}</p>'
        f'<figure role="img" aria-label="{described}">{svg}</figure></section>'
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_breakable(name)}</th>' for name in table.columns)
    body = "".join(_line(cells) for cells in table.rows)
    return (
        f"<section><h2>{escape(table.title)}</h2>"
        f'<p class="note">{escape(table.explanation)}</p><div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _breakable(name: str) -> str:
    return escape(name).replace("_\n", "_<wbr>").replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    mark = ' class="all"' if cells[0] == ALL else ""
    first = f'<th scope="row">{escape(cells[0])}</th>'
    return f"<tr{mark}>{first}{''.join(f'<td>{escape(cell)}</td>' for cell in cells[1:])}</tr>"
