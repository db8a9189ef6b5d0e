"""Makes docs/laws.md from the table of laws (tests/laws.py) and the docstrings of the samplers.

python docs/make_laws.py writes the page; a test compares it with what would be written.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "laws.md"

HEAD = """\
# Which law each sampler leaves invariant

$U$ is minus the log posterior, $r$ the momentum, $\\xi$ the thermostat. A method that is right "as the step goes to
zero" has a bias at every step that people use: its order, and for linear chains its size, are in the tests named here.
A method that is exact needs all data at every step. Tests are below `tests/`; the recipe is a function of
`fokker.recipe.catalogue`, with which the sampler's one-step mean and covariance agree as the step goes to zero.

This page is written by `docs/make_laws.py`.
"""


def page(laws) -> str:
    """The text of docs/laws.md."""
    lines = [HEAD, "| sampler | leaves invariant | in which limit | recipe | first proof |", "|---|---|---|---|---|"]
    for law in laws:
        recipes = ", ".join(f"`{name}`" for name in law.recipe.split(", ") if name) or "–"
        first = law.proof[0].split("::")[1]
        cells = [f"[`{law.kernel}`](#{law.kernel})", law.leaves_invariant, law.limit, recipes, f"`{first}`"]
        lines.append(f"| {' | '.join(cells)} |")
    for law in laws:
        docstring = import_module(law.module).__doc__.strip()
        lines += ["", f"## {law.kernel}", "", "```text", docstring, "```", "", "Proved by:", ""]
        lines += [f"- `{test}`" for test in law.proof]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.laws import LAWS

    PAGE.write_text(page(LAWS), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
