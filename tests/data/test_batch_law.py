"""What the order of batches does to the law of SGLD, exactly (docs/adr/0003-batches.md).

Rows y_i ~ Normal(x, 1), one parameter: the gradient of a batch is N (x - mean y) + e with e free of x, so
that SGLD is the linear chain x+ = rho x - eps e + Normal(0, 2 eps), rho = 1 - eps N. The noise e adds to its
variance: with independent windows eps^2 V / (1 - rho^2), with epochs a sum over the covariance of e within an
epoch, since offsets drawn anew make epochs independent. All outcomes of the library's own draws are
enumerated.
"""

from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.signal import lfilter

from fokker.data import batches as module
from fokker.data.batches import Batches
from fokker.run.gradients import minibatch
from fokker.target import Target


def epochs_of(size, batch_size, monkeypatch, run=1):
    """Starts of the windows of one epoch, (outcomes, per_epoch): each pair of draws, all equally likely."""
    batches, draws = Batches(size, batch_size, 0, run=run), {}
    monkeypatch.setattr(
        module.random, "integers", lambda key, t, index, bound: np.full(len(t), draws[int(index[0])] % bound)
    )
    outcomes = []
    for offset in range(size):
        for stride in range(batches.runs):
            draws.update({0: offset, 1: stride})
            outcomes.append(batches.starts(0, 0, batches.per_epoch))
    return np.array(outcomes)


def noise_of_windows(y, batch_size):
    """e for the window at each start, along the last axis of y: (..., size)."""
    size = y.shape[-1]
    wrapped = np.concatenate([y, y[..., : batch_size - 1]], axis=-1)
    totals = np.cumsum(np.concatenate([np.zeros_like(y[..., :1]), wrapped], axis=-1), axis=-1)
    means = (totals[..., batch_size:] - totals[..., :-batch_size]) / batch_size
    return size * (y.mean(-1, keepdims=True) - means)


def closed_form(size, batch_size, y, run=1):
    """Mean over all shuffles of the covariance of e within an epoch: V on the diagonal, -V n / (N - n) elsewhere."""
    V = size**2 / batch_size * (1 - batch_size / size) * y.var(ddof=1)
    per_epoch, ratio = size // batch_size // run * run, batch_size / (size - batch_size)
    return V * ((1 + ratio) * np.eye(per_epoch) - ratio), V


def added_by_epochs(covariance, rho, eps):
    """Variance that the noise adds at each position within an epoch, (per_epoch,)."""
    per_epoch = len(covariance)
    within = np.zeros(per_epoch + 1)
    for j in range(1, per_epoch + 1):
        decay = rho ** np.arange(j)[::-1]
        within[j] = eps**2 * decay @ covariance[:j, :j] @ decay
    start = within[per_epoch] / (1 - rho ** (2 * per_epoch))
    return start * rho ** (2 * np.arange(1, per_epoch + 1)) + within[1:]


def added_by_independent(V, rho, eps):
    return eps**2 * V / (1 - rho**2)


def test_the_noise_is_that_of_the_library_and_does_not_depend_on_the_parameter(x64):
    y = np.random.default_rng(0).normal(size=9)
    target = Target(lambda x: 0.0 * x.sum(), lambda x, rows: -0.5 * (rows - x[0]) ** 2, y)
    bound, e = minibatch().bind(target), noise_of_windows(y, 4)
    for x in (-1.0, 0.3):
        for start in range(9):
            rows = jnp.asarray(y[(start + np.arange(4)) % 9])
            grad_u = bound.estimate(None, jnp.array([x]), rows, bound.init(jnp.zeros(1)))[0]
            assert_allclose(grad_u, 9 * (x - y.mean()) + e[start], atol=1e-12)


@pytest.mark.parametrize(
    ("size", "batch_size", "run"), [(6, 2, 1), (7, 2, 1), (6, 1, 1), (7, 3, 1), (6, 1, 2), (7, 1, 2), (7, 1, 3)]
)
def test_over_all_shuffles_batches_of_an_epoch_repel_each_other_by_n_over_the_rest(size, batch_size, run, monkeypatch):
    y = np.random.default_rng(1).normal(size=size)
    outcomes = epochs_of(size, batch_size, monkeypatch, run)
    e = noise_of_windows(y[np.array(list(permutations(range(size))))], batch_size)
    assert_allclose(e[:, outcomes].mean(1), 0, atol=1e-12)  # unbiased at every position, given the order of rows
    covariance = np.mean([epoch.T @ epoch for epoch in e[:, outcomes]], axis=0) / len(outcomes)
    assert_allclose(covariance, closed_form(size, batch_size, y, run)[0], atol=1e-11)


@pytest.mark.parametrize(("size", "batch_size"), [(14, 2), (22, 2), (15, 5)])
def test_a_prime_number_of_batches_needs_no_average_over_shuffles(size, batch_size, monkeypatch):
    """The stride then makes every distance equally likely, and the windows of an epoch sum to the whole."""
    y = np.random.default_rng(2).normal(size=size)
    e = noise_of_windows(y, batch_size)
    epoch = e[epochs_of(size, batch_size, monkeypatch)]
    per_epoch = size // batch_size
    ratio = 1 / (per_epoch - 1)
    # A draw of stride 0 moves on to 1, which is then twice as likely as the others.
    strides = np.array([max(s, 1) for _ in range(size) for s in range(per_epoch)])
    weight = np.where(strides == 1, 0.5, 1.0) / size / (per_epoch - 1)
    covariance = np.einsum("o,oi,oj->ij", weight, epoch, epoch)
    assert_allclose(covariance, (e**2).mean() * ((1 + ratio) * np.eye(per_epoch) - ratio), atol=1e-11)


@pytest.mark.parametrize("batches", [2, 3, 5, 20, 100, pytest.param(1000, marks=pytest.mark.slow)])
def test_epochs_never_add_more_than_the_factor_and_mostly_less(batches):
    """At every position in an epoch, for chains that forget in a step and chains that remember a thousand epochs."""
    size, y = 4 * batches, np.random.default_rng(3).normal(size=4 * batches)
    covariance, V = closed_form(size, 4, y)
    previous = np.inf
    for forget in (1.0, 0.5, 0.1, 1e-2, 1e-3, 1e-5):  # 1 - rho, the share of x that a step forgets
        eps, rho = forget / size, 1 - forget
        ratio = added_by_epochs(covariance, rho, eps) / added_by_independent(V, rho, eps)
        assert ratio.max() <= 1 + 1 / (batches - 1) + 1e-12
        assert ratio.mean() < previous + 1e-12  # the longer the memory, the more the noise of an epoch cancels
        previous = ratio.mean()
        if forget * batches <= 1:
            assert ratio.mean() < 0.5 * min(1, forget * batches) * (1 + 2 / batches)


def test_of_a_single_order_the_added_variance_stays_within_the_factor_on_average(monkeypatch):
    """Many shuffles of one data set, a composite number of batches: their mean is the closed form, within its error."""
    size, batch_size, forget, rng = 48, 4, 0.2, np.random.default_rng(4)
    y, outcomes = rng.normal(size=size), epochs_of(size, batch_size, monkeypatch)
    eps, rho = forget / size, 1 - forget
    mean_covariance, V = closed_form(size, batch_size, y)
    added = []
    for _ in range(300):
        e = noise_of_windows(rng.permutation(y), batch_size)
        epoch = e[outcomes]
        added.append(added_by_epochs(epoch.T @ epoch / len(epoch), rho, eps).mean())
    want, error = added_by_epochs(mean_covariance, rho, eps).mean(), np.std(added) / len(added) ** 0.5
    assert abs(np.mean(added) - want) < 4 * error
    assert np.mean(added) + 4 * error < added_by_independent(V, rho, eps)


@pytest.mark.parametrize("run", [1, 3])
@pytest.mark.parametrize("order", ["epochs", "independent"])
def test_chains_on_the_batches_as_drawn_have_the_variance_of_the_enumeration(order, run):
    """The deterministic part x+ = rho x - eps e on real seeds, averaged over seeds: orders, offsets and strides.

    Windows of a run of independent ones share no row, so that they repel each other as those of an epoch do.
    """
    size, batch_size, forget, steps = 40, 4, 0.1, 2000
    y, eps, rho = np.random.default_rng(5).normal(size=size), forget / size, 1 - forget
    squares = []
    for seed in range(200):
        batches = Batches(size, batch_size, seed, order, run=run)
        e = noise_of_windows(y[batches.row_orders()[0]], batch_size)[batches.starts(0, 0, steps)]
        squares.append((lfilter([-eps], [1, -rho], e)[200:] ** 2).mean())
    covariance, V = closed_form(size, batch_size, y, run)
    if order == "independent":  # an epoch of one run
        covariance = covariance[:run, :run]
    want = added_by_epochs(covariance, rho, eps).mean()
    assert run > 1 or order == "epochs" or np.isclose(want, added_by_independent(V, rho, eps))
    error = np.std(squares) / len(squares) ** 0.5
    assert abs(np.mean(squares) - want) < 4 * error
    assert error < 0.05 * want
