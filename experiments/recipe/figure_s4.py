"""Figure S.4 of Ma, Chen & Fox (2015): where known methods lie in the product of diffusions and curls.

python -m experiments.recipe.figure_s4 [--quick]
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments import report
from fokker import Recipe, check
from fokker.recipe.catalogue import TABLE, Phase, adaptive, draw_map

PLACES = ("zero", "constant", "adaptive")
PRINTED = ("SGLD", "SGRLD", "HMC", "SGHMC", "SGNHT", "gSGRHMC")  # those whose (D, Q) the paper gives


def potential(q):
    """Neither quadratic nor separable. (d,) -> ()."""
    return (q**4).sum() / 4 + (q**2).sum() / 2 + q[0] * q[-1] / 2


def main(quick: bool = False, out: Any = None) -> dict:
    figure, axes = plt.subplots(figsize=(7.2, 5.4), layout="constrained")
    draw_map(axes)
    axes.set_title("Where the methods live in D × Q; orange: what the paper adds")
    return report.write(
        __file__,
        "Figure S.4",
        "Known methods in the space of diffusions D(z) and curls Q(z)",
        quick,
        figure,
        claims(3 if quick else 20),
        out,
    )


def where(field: Any, states: list) -> str:
    """Whether a matrix field is zero, constant or adaptive, as seen at some states."""
    values = [np.asarray(field(z)) for z in states]
    if not any(v.any() for v in values):
        return "zero"
    return "constant" if all(np.array_equal(v, values[0]) for v in values) else "adaptive"


def home(recipe: Recipe, state: Any) -> tuple[str, str]:
    """Where D and Q of a recipe live, by evaluation at states along a ray."""
    states = [jax.tree.map(lambda a, k=k: a * (1 + k / 7), state) for k in range(3)]
    return where(lambda z: recipe.matrices(z)[0], states), where(lambda z: recipe.matrices(z)[1], states)


def claims(points: int) -> list[dict]:
    q = jnp.array([0.4, -0.9, 0.7])
    recipes = {m.name: (m, m.example(potential, 3), m.state(q)) for m in TABLE}
    homes = {name: home(recipe, z) for name, (_, recipe, z) in recipes.items()}
    residual = {
        name: check(recipe.drift, recipe.D, recipe.H, z, count=points).residual
        for name, (_, recipe, z) in recipes.items()
    }
    as_listed = lambda m: homes[m.name] == (m.diffusion, m.curl)
    told = "; ".join(f"{name}: D {d}, Q {c}" for name, (d, c) in homes.items() if name in PRINTED)
    worst = max(residual.values())
    beside = [m.name for m in TABLE if homes[m.name] == homes["gSGRHMC"] and m.name in PRINTED and m.name != "gSGRHMC"]
    filled = set(homes.values())
    empty = [(d, c) for d in PLACES for c in PLACES if (d, c) not in filled and (d, c) != ("zero", "zero")]
    sgrld, z = recipes["SGRLD"][1:]
    no_gamma = lambda z: -sgrld.matrices(z)[0] @ jax.grad(sgrld.H)(z)
    able = {"the same residual rejects SGRLD without Γ": not check(no_gamma, sgrld.D, sgrld.H, z, count=points).ok}
    legal = [check(r.drift, r.D, r.H, Phase(q, q), count=points).ok for r in map(made_up, empty)]
    return [
        report.claim(
            "The recipe contains SGLD, SGRLD, HMC, SGHMC, SGNHT and gSGRHMC, with the D and Q that the paper gives.",
            f"{told}. Residual of all {len(TABLE)} methods of the catalogue: at most {worst:.0e} of the terms.",
            all(map(as_listed, TABLE)) and worst < 1e-12,
            able,
            "Of SGNHT with the Hamiltonian corrected: (ξ − A)² has the weight d/2, where both texts print 1/(2d).",
        ),
        report.claim(
            "gSGRHMC covers a part of the space that the methods before it did not.",
            f"D is {homes['gSGRHMC'][0]} and Q is {homes['gSGRHMC'][1]}; of the others are there: "
            f"{', '.join(beside) or 'none'}.",
            not beside,
            able,
            "Among the methods that the paper lists; SGNHT has an adaptive Q but a constant D, SGRLD the reverse.",
        ),
        report.claim(
            "Most of the product space has yet to be filled.",
            f"{len(filled)} of the 8 cells in which something moves hold a method. Empty: "
            + " and ".join(f"D {d} with Q {c}" for d, c in empty)
            + f"; {sum(legal)} of {len(legal)} samplers made up for it are right.",
            len(filled) < 4,
            able,
            "A cell is a space of functions, so that a count of cells cannot decide it; what it shows is that every "
            "combination of kinds is legal. SGGMC came a year after the paper.",
        ),
    ]


def made_up(cell: tuple[str, str]) -> Recipe:
    """A sampler for a cell that no method fills."""
    metric = next(m for m in TABLE if m.name == "SGRLD").example(potential, 3).D
    return {("zero", "adaptive"): adaptive(potential, metric, 0.0)}[cell]


if __name__ == "__main__":
    report.command_line(main)
