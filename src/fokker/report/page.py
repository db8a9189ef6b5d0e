"""One self-contained HTML page of a run: summary, traces, audit, settings. No network, light and dark."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

MOST_ENTRIES = 200

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --paper: #fff; --soft: #f2f4f8; --line: #d5dae3; --accent: #1d5fa8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ef; --paper: #14181f; --soft: #1d232d; --line: #343c49; --accent: #7ab4f5; }
  img { background: #fff; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; color: var(--accent); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } thead th { background: var(--soft); }
img { max-width: 100%; height: auto; border-radius: 4px; }
.verdict { padding: .7rem 1rem; border-left: .4rem solid var(--colour); background: var(--soft); border-radius: 4px; }
.green, .ok { --colour: #2e8b57; } .amber, .warn { --colour: #c98500; } .red, .fail { --colour: #c0392b; }
.unmeasured { --colour: #8792a2; } .mark { color: var(--colour); font-weight: 600; white-space: nowrap; }
.audit :is(th, td):is(:nth-child(2), :nth-child(5)) { text-align: left; } .audit td:nth-child(5) { min-width: 18rem; }
pre { background: var(--soft); padding: .8rem; overflow-x: auto; font-size: .85rem; border-radius: 4px; }
details summary { cursor: pointer; }
"""


def write_page(run: Any, path: Path) -> Path:
    """Write the page and return its path. The audit shown is the stored one, or is measured now."""
    from fokker.run.audit import stored

    frame = run.summary()
    figure = run.plot_trace()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    picture = base64.b64encode(buffer.getvalue()).decode()
    audit = stored(run) or run.audit()
    head = "".join(f"<th scope=col>{html.escape(str(c))}</th>" for c in ["", *frame.columns])
    rows = "".join(
        f"<tr><th scope=row>{html.escape(str(label))}</th>"
        + "".join(f"<td>{_number(c, v)}</td>" for c, v in row.items())
        + "</tr>"
        for label, row in frame.head(MOST_ENTRIES).iterrows()
    )
    more = f"<p>The first {MOST_ENTRIES} of {len(frame)} entries.</p>" if len(frame) > MOST_ENTRIES else ""
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>fokker run</title><style>{STYLE}</style></head><body>
<h1>{html.escape(_title(run))}</h1>
<h2>Can these draws be trusted?</h2>
<p class="verdict {audit.verdict}"><b>{audit.verdict.upper()}.</b> {html.escape(audit.words)}</p>
<details open><summary>the evidence</summary>{_findings(audit)}</details>
<h2>Summary</h2><div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}
<h2>Traces</h2><img alt="density and path of the first entries, a colour a chain" src="data:image/png;base64,{picture}">
<h2>Settings</h2><details><summary>everything that decided the draws</summary>
<pre>{html.escape(json.dumps(dict(run.settings), indent=1, default=str))}</pre></details>
</body></html>"""
    path = Path(path)
    path.write_text(page, encoding="utf-8")
    return path


def _title(run: Any) -> str:
    sizes, kernel = run.draws.sizes, run.settings["kernel"]["name"]
    return f"{kernel}: {sizes['chain']} chains of {sizes['draw']:,} draws, {run.state}"


def _findings(audit: Any) -> str:
    number = lambda x: "" if x is None else f"{x:.3g}"
    rows = "".join(
        f"<tr><td class='mark {'unmeasured' if f.verdict == 'not measured' else f.verdict}'>{f.verdict}</td>"
        f"<td>{html.escape(f.name)}</td><td>{number(f.value)}</td><td>{number(f.threshold)}</td>"
        f"<td>{html.escape(f.evidence)}</td></tr>"
        for f in audit.findings
    )
    head = "".join(f"<th scope=col>{name}</th>" for name in ("", "finding", "value", "limit", "what was seen"))
    return f'<div class="wide"><table class="audit"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _number(column: str, value: float) -> str:
    return f"{value:,.0f}" if column.startswith("ess") else f"{value:.4g}"
