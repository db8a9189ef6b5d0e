"""Minibatches: every row equally likely, no row twice in an epoch, any iteration alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fokker.data.batches import Batches
from fokker.errors import InputError

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300)).filter(lambda s: s[1] <= s[0])


def rows(batches, start):
    return (start + np.arange(batches.batch_size)) % batches.size


@given(sizes=SIZES, seed=st.integers(0, 2**40), epoch=st.integers(0, 50))
@settings(max_examples=50, deadline=None)
def test_an_epoch_uses_no_row_twice(sizes, seed, epoch):
    batches = Batches(*sizes, seed=seed)
    per_epoch = batches.size // batches.batch_size
    used = np.concatenate([rows(batches, s) for s in batches.starts(0, epoch * per_epoch, per_epoch)])
    assert len(np.unique(used)) == len(used) == per_epoch * batches.batch_size


@given(
    sizes=SIZES,
    seed=st.integers(0, 2**40),
    first=st.integers(0, 10_000),
    order=st.sampled_from(["epochs", "independent"]),
)
@settings(max_examples=50, deadline=None)
def test_any_iteration_can_be_had_alone(sizes, seed, first, order):
    batches = Batches(*sizes, seed=seed, order=order)
    together = batches.starts(3, first, 7)
    assert together.tolist() == [int(batches.starts(3, first + i, 1)[0]) for i in range(7)]
    assert (0 <= together).all() and (together < batches.size).all()


@pytest.mark.parametrize("order", ["epochs", "independent"])
def test_every_row_is_equally_likely_at_every_iteration(order):
    batches = [Batches(30, 7, seed=s, order=order) for s in range(3000)]
    for t in (0, 3, 5):
        starts = np.array([b.starts(0, t, 1)[0] for b in batches])
        assert stats.chisquare(np.bincount(starts, minlength=30)).pvalue > 1e-4


def test_chains_and_epochs_have_their_own_batches():
    batches = Batches(10_000, 10, seed=0)
    first, second, other = batches.starts(0, 0, 1000), batches.starts(0, 1000, 1000), batches.starts(1, 0, 1000)
    assert (first != second).mean() > 0.99 and (first != other).mean() > 0.99


def test_the_resident_order_is_a_permutation():
    assert (np.sort(Batches(1000, 10, seed=0).row_order()) == np.arange(1000)).all()


@pytest.mark.parametrize("size, batch_size", [(10, 11), (10, 0)])
def test_a_batch_larger_than_the_data_is_refused(size, batch_size):
    with pytest.raises(InputError, match=f"batch_size={batch_size} for {size} rows"):
        Batches(size, batch_size, seed=0)
