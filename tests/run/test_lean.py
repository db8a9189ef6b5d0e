"""A log likelihood rewritten before it is differentiated: the same values, derivatives of any order, and less work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fokker
from fokker.run.gradients import likelihood_gradient, row_gradients
from fokker.run.lean import lean

RNG = np.random.default_rng(0)
ROWS = {"x": RNG.standard_normal((7, 3)), "y": (RNG.random(7) < 0.5).astype(float)}


def logistic(beta, rows):
    return rows["y"] * (rows["x"] @ beta) - jax.nn.softplus(rows["x"] @ beta)


def one_row(beta, row):
    return row["y"] * jax.nn.log_sigmoid(row["x"] @ beta) + (1 - row["y"]) * jax.nn.log_sigmoid(-(row["x"] @ beta))


def with_control_flow(beta, rows):
    def more(total, x):
        return total + jax.nn.softplus(x @ beta), jax.nn.softplus(x @ beta)

    _, out = jax.lax.scan(more, 0.0, rows["x"])
    return jax.lax.cond(beta[0] > 0, lambda: out, lambda: 2 * out) + jnp.logaddexp(rows["y"], beta[1])


@pytest.mark.parametrize("f", [logistic, fokker.per_row(one_row), with_control_flow, jax.jit(logistic)])
@pytest.mark.parametrize(
    "beta",
    [
        np.array([0.3, -1.0, 0.5]),
        pytest.param(np.array([200.0, -1e3, 500.0]), marks=pytest.mark.slow),
        pytest.param(np.zeros(3), marks=pytest.mark.slow),
    ],
)
def test_values_and_derivatives_are_the_same(f, beta, x64):
    beta = jnp.asarray(beta)
    for derivative in (lambda g: g, jax.jacrev, jax.jacfwd, lambda g: jax.jacfwd(jax.jacrev(g))):
        want = derivative(lambda b: f(b, ROWS))(beta)
        got = derivative(lambda b: lean(f)(b, ROWS))(beta)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12 * (1 + np.abs(want).max()))


def work(f):
    """Names of the operations of a compiled gradient, products counted."""
    text = jax.jit(jax.grad(lambda b, rows: f(b, rows).sum())).lower(jnp.zeros(3), ROWS).compile().as_text()
    return text.count(" dot("), text.count(" log-plus-one(")


def test_equal_products_are_taken_once_and_the_slope_is_the_sigmoid():
    products, logs = work(logistic)
    assert (products, logs) == (3, 1)  # what it costs as it is written; if JAX does better one day, lean.py can go
    assert work(lean(logistic)) == (2, 0)


def test_different_products_are_not_mixed_up():
    f = lambda b, rows: (rows["x"] @ b) * (rows["z"] @ b) - rows["x"].T @ (rows["x"] @ b) @ b
    rows = {"x": ROWS["x"], "z": 2 * ROWS["x"] + 1}
    gradient = lambda g: jax.grad(lambda b: g(b, rows).sum())(jnp.ones(3))
    want, got = gradient(f), gradient(lean(f))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_the_gradients_of_a_target_are_those_of_the_ready_regression(x64):
    ready = fokker.glm(ROWS["x"], ROWS["y"], "bernoulli", intercept=False)
    batch = {"X": jnp.asarray(ROWS["x"]), "y": jnp.asarray(ROWS["y"])}
    written = fokker.Target(
        lambda p: 0.0 * p.sum(), lambda p, rows: logistic(p, {"x": rows["X"], "y": rows["y"]}), batch
    )
    beta = jnp.asarray([0.3, -1.0, 0.5])
    for gradient in (likelihood_gradient, row_gradients):
        np.testing.assert_allclose(gradient(written, beta, batch), gradient(ready, {"beta": beta}, batch), atol=1e-12)
