"""Makes the tables of docs/spaces.md from the rows of tests/spaces.py.

python docs/make_spaces.py writes the page; a test compares it with what would be written.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "spaces.md"

HEAD = """\
# Spaces: where parameters live

Parameters that are a direction, proportions, a rotation or a bounded number live on a space of their own.
`Target(space=...)` takes one, or a pytree of them that mirrors the parameters; what it leaves out is Euclidean.
You write the density of the parameters themselves, in the measure of the table, and get draws of them; maps and their
Jacobians are the library's.

```python
import fokker
import jax
import jax.numpy as jnp
import numpy as np

data = np.random.default_rng(0).multinomial(1, [0.2, 0.3, 0.5], 300).astype(np.float32)
space = {"shares": fokker.Simplex(3), "mean": fokker.Sphere(3)}
target = fokker.Target(
    log_prior=lambda p: 4 * p["mean"][2],
    log_likelihood=lambda p, rows: rows @ jnp.log(p["shares"]),
    data=data,
    space=space,
    start=fokker.random_params(space, jax.random.key(0)),
)
run = fokker.sample(target, fokker.gmc(step_size=0.015), draws=200, warmup=100, progress=False)
assert abs(run.draws["shares"].mean(("chain", "draw")) - [0.2, 0.3, 0.5]).max() < 0.1
```

Where geodesics are known, `sggmc` and `gsgnht` move by minibatches and `gmc` exactly. Of an `Implicit` space only a
constraint is known: `chmc` moves there, and on its products with all others.

## Every space

The shape and the dimension are those of the example. A set with a boundary is seen through a carrier without one, by
the map in the column of formulas; the laws of its flow are the carrier's.
"""

LAWS = """\
## Its laws

Each is written once and run on the spaces that name it, at random points. Tests are below `tests/`.
"""

FOOT = """\
A point off its space, a space that does not mirror the parameters and a constraint without full rank are refused before
a run begins. Velocities are drawn by the samplers, so nobody can give one that is not tangent. This page is written by
`docs/make_spaces.py`.
"""


def page(spaces, laws) -> str:
    """The text of docs/spaces.md."""
    lines = [HEAD, "| space | set | shape | dimension | measure | formulas | laws |", "|---|---|---|---|---|---|---|"]
    for row in spaces:
        carrier = getattr(row.example, "carrier", row.example)
        cells = [f"`{row.call}`", row.set, f"`{row.example.shape}`", str(carrier.dim), row.measure, row.source]
        lines.append(f"| {' | '.join([*cells, ', '.join(row.laws)])} |")
    lines += ["", LAWS, "| law | says | tests |", "|---|---|---|"]
    for name, (says, tests) in laws.items():
        lines.append(f"| {name} | {says} | {'<br>'.join(f'`{test}`' for test in tests)} |")
    return "\n".join([*lines, "", FOOT])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.spaces import LAWS as laws
    from tests.spaces import SPACES

    PAGE.write_text(page(SPACES, laws), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
