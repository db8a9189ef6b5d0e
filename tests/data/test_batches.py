"""Minibatches: every row equally likely, no row twice in an epoch, any iteration alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fokker.data.batches import Batches
from fokker.errors import InputError

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300)).filter(lambda s: s[1] <= s[0])


COPIES, RUN = st.sampled_from([1, 2, 5]), st.sampled_from([1, 2, 7])


def rows(batches, start):
    """The rows of a batch, as the loop cuts them from what lies in memory."""
    return batches.resident_rows()[start : start + batches.batch_size]


@given(sizes=SIZES, seed=st.integers(0, 2**40), epoch=st.integers(0, 50), copies=COPIES, run=RUN)
@settings(max_examples=50, deadline=None)
def test_an_epoch_uses_no_row_twice(sizes, seed, epoch, copies, run):
    run = min(run, sizes[0] // sizes[1])
    batches = Batches(*sizes, seed=seed, copies=copies, run=run)
    per_epoch = batches.per_epoch
    assert sizes[0] // sizes[1] - run < per_epoch <= sizes[0] // sizes[1]
    used = np.concatenate([rows(batches, s) for s in batches.starts(0, epoch * per_epoch, per_epoch)])
    assert len(np.unique(used)) == len(used) == per_epoch * batches.batch_size


@given(
    sizes=SIZES,
    seed=st.integers(0, 2**40),
    first=st.integers(0, 10_000),
    order=st.sampled_from(["epochs", "independent"]),
    copies=COPIES,
    run=RUN,
)
@settings(max_examples=50, deadline=None)
def test_any_iteration_can_be_had_alone(sizes, seed, first, order, copies, run):
    batches = Batches(*sizes, seed=seed, order=order, copies=copies, run=min(run, sizes[0] // sizes[1]))
    together = batches.starts(3, first, 7)
    assert together.tolist() == [int(batches.starts(3, first + i, 1)[0]) for i in range(7)]
    copy, start = np.divmod(together, batches.size + batches.batch_size - 1)
    assert ((0 <= copy) & (copy < copies)).all() and (start < batches.size).all()


@pytest.mark.parametrize("copies, run", [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("order", ["epochs", "independent"])
def test_every_window_is_equally_likely_at_every_iteration(order, copies, run):
    """And with it every row, since each is in n of the windows of an order."""
    batches = [Batches(30, 7, seed=s, order=order, copies=copies, run=run) for s in range(3000)]
    for t in (0, 3, 5):
        copy, start = np.divmod(np.array([b.starts(0, t, 1)[0] for b in batches]), 36)
        counts = np.bincount(30 * copy + start, minlength=30 * copies)
        assert len(counts) == 30 * copies and stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("order", ["epochs", "independent"])
def test_with_several_orders_the_noise_hangs_less_on_the_seed(order):
    """The mean square of a window's mean over all windows, as the sampler draws them: its spread over seeds."""
    y = np.random.default_rng(0).normal(size=50)
    y -= y.mean()
    spread = {}
    for copies in (1, 25):
        noise = []
        for seed in range(60):
            batches = Batches(50, 10, seed=seed, order=order, copies=copies)
            resident = y[batches.resident_rows()]
            windows = resident[batches.starts(0, 0, 5000)[:, None] + np.arange(10)].mean(1)
            noise.append((windows**2).mean())
        exact = y.var(ddof=1) / 10 * (1 - 10 / 50)
        assert abs(np.mean(noise) - exact) < 4 * np.std(noise) / np.sqrt(len(noise))
        spread[copies] = np.std(noise) / exact
    assert spread[1] > 0.2 and spread[25] < 0.4 * spread[1]  # 1/5, but for the sampling error of 5,000 windows


def test_copies_are_made_where_windows_are_few_and_memory_allows():
    copies = lambda *settings: Batches.of(*settings, seed=0, order="epochs").copies
    assert copies(100_000, 100, 204) == 1  # 1,000 windows
    assert copies(500, 100, 24) == 80
    assert copies(32_000, 300, 400) == 1  # 13 MB: twice that would leave the cache
    assert copies(100, 100, 8) == 1  # all rows in every batch


@pytest.mark.parametrize("order", ["epochs", "independent"])
def test_windows_of_a_run_follow_each_other_in_memory_and_runs_do_not(order):
    batches = Batches(1000, 10, seed=0, order=order, run=4)
    jumps = np.diff(batches.starts(0, 0, 200)) % 1000 != 10
    assert not jumps[np.arange(199) % 4 != 3].any() and jumps[3::4].mean() > 0.9


def test_runs_are_as_long_as_leaves_two_hundred_of_them():
    run = lambda size: Batches.of(size, 100, 204, seed=0, order="epochs").run
    assert [run(size) for size in (10_000, 39_999, 40_000, 100_000, 1_000_000)] == [1, 1, 2, 5, 8]


def test_chains_and_epochs_have_their_own_batches():
    batches = Batches(10_000, 10, seed=0)
    first, second, other = batches.starts(0, 0, 1000), batches.starts(0, 1000, 1000), batches.starts(1, 0, 1000)
    assert (first != second).mean() > 0.99 and (first != other).mean() > 0.99


def test_the_orders_are_permutations():
    orders = Batches(1000, 10, seed=0, copies=3).row_orders()
    assert (np.sort(orders, axis=1) == np.arange(1000)).all()
    assert (orders[0] != orders[1]).mean() > 0.99


@pytest.mark.parametrize("size, batch_size", [(10, 11), (10, 0)])
def test_a_batch_larger_than_the_data_is_refused(size, batch_size):
    with pytest.raises(InputError, match=f"batch_size={batch_size} for {size} rows"):
        Batches(size, batch_size, seed=0)
