"""The style sheet of a report: light and dark, narrow and wide, on paper; no outside font."""

from paceline.bench.palette import ROLES


def _variables(index: int) -> str:
    return " ".join(f"--{role}: {colours[index]};" for role, colours in ROLES.items())


STYLE = f"""
:root {{ color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --good: #1c7a4c;
  --bad: #b3261e; {_variables(0)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #11151c; --card: #1a202a; --good: #6fd3a0; --bad: #ff9a92; {_variables(1)} }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }}
main {{ max-width: 1040px; margin: 0 auto; padding: 2.2rem 1.2rem 4rem; }}
h1 {{ font-size: 1.05rem; font-weight: 600; color: var(--muted); margin: 0 0 .5rem; }}
h2 {{ font-size: 1.2rem; margin: 0 0 .3rem; }}
h3 {{ font-size: .95rem; color: var(--muted); margin: 1.2rem 0 .3rem; }}
p {{ margin: .3rem 0; }}
section {{ background: var(--card); border: 1px solid var(--grid); border-radius: 12px;
  padding: 1.2rem 1.4rem; margin-top: 1.1rem; }}
.lead {{ font-size: 1.3rem; line-height: 1.4; font-weight: 600; margin: .2rem 0 .8rem; }}
.lead small {{ display: block; font-size: .85rem; font-weight: 500; color: var(--muted); }}
.tiles {{ display: grid; gap: .8rem; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr));
  margin-top: 1rem; }}
.tile {{ border: 1px solid var(--grid); border-radius: 10px; padding: .7rem .9rem; }}
.tile b {{ display: block; font-size: 1.55rem; line-height: 1.2; font-weight: 650; }}
.tile span {{ display: block; color: var(--muted); font-size: .85rem; line-height: 1.4; }}
.good {{ color: var(--good); }} .bad {{ color: var(--bad); }}
.note {{ color: var(--muted); font-size: .9rem; max-width: 46rem; }}
ul.verdicts {{ margin: .4rem 0 0; padding-left: 1.1rem; }}
ul.verdicts li {{ margin: .15rem 0; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .6rem 0 0;
  font-size: .92rem; }}
@media (min-width: 860px) {{
  dl {{ grid-template-columns: max-content 1fr max-content 1fr; }}
  dl dd:last-child {{ grid-column: 2 / -1; }}
}}
dt {{ color: var(--muted); }} dd {{ margin: 0; overflow-wrap: anywhere; }}
code {{ font: .88em/1.4 ui-monospace, "DejaVu Sans Mono", monospace; }}
figure {{ margin: .8rem 0 0; overflow-x: auto; }}
figure svg {{ display: block; width: 100%; min-width: 620px; height: auto; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .84rem;
  font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; color: var(--muted); padding: .2rem 0 .4rem; }}
th, td {{ padding: .32rem .42rem; text-align: right; border-bottom: 1px solid var(--grid);
  white-space: nowrap; }}
th {{ font-weight: 600; vertical-align: bottom; }} thead th {{ white-space: normal; }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0; }}
tr.all > * {{ font-weight: 650; border-top: 2px solid var(--grid); }}
@media print {{ body {{ background: none; }} section {{ break-inside: avoid; }} }}
"""
