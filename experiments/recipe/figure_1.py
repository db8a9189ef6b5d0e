"""Figure 1 of Ma, Chen & Fox (2015): the recipes (D, Q) are all the diffusions with a given stationary density.

    python -m experiments.recipe.figure_1 [--quick]

The paper draws two sets that coincide. Here one member is taken on each side: a sampler written by hand, without any
Q in mind, whose Q is then recovered (Theorem 2); and one that looks as good and has none.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments import report
from fokker import Recipe, check, recover_curl
from fokker.errors import InputError
from fokker.recipe import Curl, Grid

D = np.eye(2)
TURN = np.array([[0.0, 1.0], [-1.0, 0.0]])
RANDOM_POINTS = 10


def H(z):
    """Two wells, the valley between them tilted. (2,) -> ()."""
    return (z[0] ** 2 - 2) ** 2 / 4 + (z[1] - z[0] / 2) ** 2


def along_level_sets(z):
    """Downhill, and around along the lines of equal density, the faster the lower it is: keeps exp(-H)."""
    g = jax.grad(H)(z)
    return -g + H(z) * TURN @ g


def at_its_own_pace(z):
    """The same, but as fast as the place wants: looks as harmless, and is wrong."""
    g = jax.grad(H)(z)
    return -g + (1 + jnp.sin(z[0])) * TURN @ g


def main(quick: bool = False, out: Any = None) -> dict:
    grid = Grid((-4.4, -6.4), (4.4, 6.4), 128 if quick else 256)
    curl = recover_curl(along_level_sets, D, lambda z: -H(z), grid)
    wrong = check(at_its_own_pace, D, H, np.zeros(2))
    try:
        recover_curl(at_its_own_pace, D, lambda z: -H(z), grid)
        refusal = ""
    except InputError as error:
        refusal = str(error)
    return report.write(
        __file__,
        "Figure 1",
        "Every diffusion with the right stationary density has a curl, and only those",
        quick,
        draw(curl),
        claims(curl, wrong, refusal, random_recipes(2 if quick else 20)),
        out,
    )


def source(mesh: np.ndarray) -> np.ndarray:
    """div(F p) of the wrong drift at the points of the mesh, (2, ...) -> (...)."""
    with jax.enable_x64(True):
        current = lambda z: (at_its_own_pace(z) + jax.grad(H)(z)) * jnp.exp(-H(z))
        rate = jax.jit(jax.vmap(lambda z: jnp.trace(jax.jacfwd(current)(z))))
        return np.asarray(rate(mesh.reshape(2, -1).T)).reshape(mesh.shape[1:])


def random_recipes(count: int) -> list[float]:
    """The relative residual of random smooth recipes, in one to four dimensions."""
    return [random_recipe(np.random.default_rng(seed), 1 + seed % 4) for seed in range(count)]


def random_recipe(rng: np.random.Generator, n: int) -> float:
    w, a, b, c = (rng.normal(size=shape) for shape in ((5, n), (5, n, n), (5, n, n), (5,)))
    features = lambda z: jnp.sin(w @ z + jnp.arange(5.0))
    energy = lambda z: (z**4).sum() / 20 + z @ z / 2 + features(z) @ c
    root = lambda z: jnp.eye(n) + 0.3 * jnp.tensordot(features(z), a, 1)
    half = lambda z: 0.5 * jnp.tensordot(features(z), b, 1)
    recipe = Recipe(energy, lambda z: root(z) @ root(z).T, lambda z: half(z) - half(z).T)
    return check(recipe.drift, recipe.D, energy, np.zeros(n), count=RANDOM_POINTS).residual


def draw(curl: Curl) -> Any:
    figure, axes = plt.subplots(1, 3, figsize=(11.6, 4.3), layout="constrained", sharey=True)
    x, y = curl.grid.axes
    extent = (x[0], x[-1], y[0], y[-1])
    levels = np.exp(-np.arange(8.0, -1.0, -1.5))
    seen = lambda values: np.where(curl.inside, values, np.nan).T

    axes[0].contourf(x, y, curl.density.T, 12, cmap="Greys", alpha=0.8)
    u, v = (seen(component) for component in curl.current)
    axes[0].streamplot(x, y, u, v, density=1.1, color="#0072B2", linewidth=0.8, arrowsize=0.9)
    axes[0].set_title("A sampler written by hand:\nits current has no source")

    image = axes[1].imshow(seen(curl.Q[1, 0]), origin="lower", extent=extent, aspect="auto", cmap="viridis")
    figure.colorbar(image, ax=axes[1], shrink=0.8, label="$Q_{21}$")
    axes[1].set_title("so it has a curl: the recovered $Q_{21}(z)$\n(exact: $1 + H(z)$)")

    rate = seen(source(curl.grid.mesh))
    largest = np.nanmax(np.abs(rate))
    image = axes[2].imshow(rate, origin="lower", extent=extent, aspect="auto", cmap="RdBu", vmin=-largest, vmax=largest)
    figure.colorbar(image, ax=axes[2], shrink=0.8, label="divergence of the current")
    axes[2].set_title("Another one: its current has sources\nand sinks (shown), so it has none")

    for axis in axes:
        axis.contour(x, y, curl.density.T, levels, colors="black", linewidths=0.4, alpha=0.6)
        axis.set(xlabel="$z_1$", xlim=(-3.3, 3.3), ylim=(-4.4, 4.4))
    axes[0].set_ylabel("$z_2$")
    return figure


def claims(curl: Curl, wrong: Any, refusal: str, residuals: list[float]) -> list[dict]:
    exact = 1 + np.asarray(H(curl.grid.mesh))
    error = lambda q: np.nanmax(np.abs(q - exact)[curl.inside])
    with jax.enable_x64(True):
        z = np.random.default_rng(0).normal(size=(20, 2))
        again = jax.vmap(Recipe(H, D, curl.matrix).drift)(z)
        drift = jax.vmap(along_level_sets)(z)
        gap = float(np.abs(again - drift).max() / np.abs(drift).max())
    integral = recover_curl(along_level_sets, D, lambda z: -H(z), curl.grid, method="integral")
    winding = winds_around_the_torus()
    return [
        report.claim(
            "Every recipe (D, Q) has exp(−H) as a stationary density (Theorem 1).",
            f"{len(residuals)} random smooth (H, D, Q) in 1 to {min(4, len(residuals))} dimensions, {RANDOM_POINTS} "
            f"points each: the stationary Fokker-Planck equation is off by {max(residuals):.0e} of its terms at most.",
            max(residuals) < 1e-12,
            {
                "at least two recipes, each from a seed of its own": len(residuals) > 1,
                "the same residual sees a wrong drift": wrong.residual > 1e-3,
            },
            "This takes eq. (3), which adds Γ; eqs. (6), (9), (14) and (17) subtract it in print, which is wrong.",
        ),
        report.claim(
            "Every diffusion with that stationary density is such a recipe: there is no gap (Theorem 2).",
            f"The drift −∇H + H J∇H was written without a Q. Recovered: Q₂₁ = 1 + H with an error of "
            f"{error(curl.Q[1, 0]):.0e} where p is above 10⁻⁴ of its maximum, Q₂₁ up to {np.nanmax(curl.Q[1, 0]):.0f}; "
            f"the recipe with that Q gives the drift again to {gap:.0e}.",
            error(curl.Q[1, 0]) < 1e-5 and gap < 1e-6,
            {
                "a second construction, by integrals, finds the same Q": error(integral.Q[1, 0]) < 0.1,
                "what has no Q is refused": bool(refusal) and winding,
            },
            "The theorem asks for an integrable current, and it means the whole space: on a torus the uniform density "
            f"is stationary under a constant drift, which has no Q ({'refused' if winding else 'not refused'}).",
        ),
        report.claim(
            "A diffusion outside the recipe does not have that stationary density.",
            f"−∇H + (1 + sin z₁) J∇H: residual {wrong.residual:.2g} of its terms, |R| = {wrong.absolute:.2g}. "
            + ("No Q: " + refusal.split(";")[0].split(", worst")[0] + "." if refusal else "A Q was found."),
            bool(refusal) and not wrong.ok,
            {"the same test accepts the drift that is right": check(along_level_sets, D, H, np.zeros(2)).ok},
            "Its law is another one, which the recipe reaches with another H.",
        ),
        report.claim(
            "In two dimensions Q is given by the integrals of eq. (S.11).",
            f"Largest error of Q₂₁ by the first integral: {error(integral.Q[1, 0]):.0e} with the sign that follows, "
            f"{error(-integral.Q[1, 0]):.0f} with the sign as printed.",
            error(-integral.Q[1, 0]) < 0.1,
            {"with the sign that follows from the theorem the same integral is right": error(integral.Q[1, 0]) < 0.1},
            "Both lines of (S.11) have the wrong sign and lack 1/p on their second integral; the lower limits have "
            "to lie where the density vanishes.",
        ),
    ]


def winds_around_the_torus() -> bool:
    """Whether a constant drift on the torus is refused, as it has to be."""
    grid = Grid((0.0, 0.0), (1.0, 1.0), 16, periodic=True)
    try:
        recover_curl(lambda z: jnp.ones_like(z), D, lambda z: 0.0 * z[0], grid)
    except InputError:
        return True
    return False


if __name__ == "__main__":
    report.command_line(main)
