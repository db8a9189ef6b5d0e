"""Ctrl-C, and errors, in runs with a store: what is kept goes on to the draws of a run that nothing stopped."""

import contextlib
import os

import jax.numpy as jnp
import numpy as np
import pytest

import fokker
from fokker.errors import NonFiniteError, StoreError
from fokker.run import chunks, sample
from fokker.run.loop import Chains
from fokker.run.store import Store
from tests.disk import Changes

TARGET = fokker.Target.from_log_density(lambda x: -0.5 * jnp.sum(x**2), start=np.zeros(3))
KERNEL = fokker.sgld(step_size=0.1)
SETTINGS = dict(draws=12, warmup=3, chains=2, progress=False)


@pytest.fixture
def quick(monkeypatch):
    """Chunks of 5 draws, blocks of one, a disk that forces nothing, and one compiled program for all runs."""
    monkeypatch.setattr("fokker.run.store.CHUNK_DRAWS", 5)
    monkeypatch.setattr("fokker.run.loop.BLOCK_SECONDS", 1e-9)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(Store, "_sync_is_due", lambda *_: True)
    compiled = []

    def chains(plan):
        if not compiled:
            one = Chains(plan)
            close, one.close = one.close, one._drop_ahead
            compiled.extend([one, one.states, close])
        compiled[0].states, compiled[0].iteration = compiled[1], 0
        return compiled[0]

    monkeypatch.setattr(sample, "Chains", chains)
    yield
    compiled[2]()


def theta(run):
    return np.asarray(run.draws["theta"])


def check_resumes(path, want):
    """The store agrees with itself, and its run ends as the one that nothing stopped."""
    kept = Store.open(path)
    done = kept.checkpoint()
    assert done.draws == 0 or done.iteration == SETTINGS["warmup"] + done.draws
    assert (np.asarray(kept.posterior()["theta"]) == want[:, : done.draws]).all()
    run = fokker.resume(path, TARGET, KERNEL, progress=False)
    assert run.state == "complete" and (theta(run) == want).all()


def test_an_interrupt_at_any_change_of_the_disk_does_not_change_the_draws(tmp_path, monkeypatch, quick):
    want = theta(fokker.sample(TARGET, KERNEL, **SETTINGS))

    def run(path, at):
        """A stored run with Ctrl-C at change number ``at`` after its store was made; the changes seen."""
        changes = Changes(at, KeyboardInterrupt())
        with monkeypatch.context() as patched:
            begin = sample._loop

            def loop(*args):
                changes.patch(patched)
                return begin(*args)

            patched.setattr(sample, "_loop", loop)
            with contextlib.suppress(KeyboardInterrupt):  # what comes within close() is for the caller
                given = fokker.sample(TARGET, KERNEL, **SETTINGS, store=path)
                assert given.state == ("interrupted" if given.draws.sizes["draw"] < 12 else "complete")
                assert (theta(given) == want[:, : given.draws.sizes["draw"]]).all()
        return changes.seen

    changes = run(tmp_path / "whole.zarr", -1)
    assert changes > 50
    for at in range(1, changes + 1):
        path = tmp_path / f"{at}.zarr"
        run(path, at)
        check_resumes(path, want)


@pytest.mark.parametrize(
    "owner, name, call", [(chunks.Draws, "put", 7), (chunks.Draws, "write", 2), (Store, "_commit", 3)]
)
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_around_a_step_of_the_store_does_not_change_the_draws(
    tmp_path, monkeypatch, quick, owner, name, call, before
):
    want = theta(fokker.sample(TARGET, KERNEL, **SETTINGS))
    step, calls = getattr(owner, name), []

    def interrupted(*args, **kwargs):
        calls.append(0)
        if before and len(calls) == call:
            raise KeyboardInterrupt
        result = step(*args, **kwargs)
        if len(calls) == call:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, interrupted)
    run = fokker.sample(TARGET, KERNEL, **SETTINGS, store=tmp_path / "run.zarr")
    assert len(calls) >= call and run.state == "interrupted"
    monkeypatch.setattr(owner, name, step)
    check_resumes(tmp_path / "run.zarr", want)


def test_a_second_interrupt_frees_the_store(tmp_path, monkeypatch, quick):
    def twice(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sample, "run_loop", twice)
        patched.setattr(sample, "_finish", twice)
        with pytest.raises(KeyboardInterrupt):
            fokker.sample(TARGET, KERNEL, **SETTINGS, store=tmp_path / "run.zarr")
    Store.open(tmp_path / "run.zarr", write=True).close()


# How a run ended is known from its store, too.

QUARTIC = fokker.Target.from_log_density(lambda x: -jnp.sum(x**4), start=np.full(2, 0.1))


def test_a_failed_run_says_so_in_memory_and_from_its_store(tmp_path):
    path, kernel = tmp_path / "run.zarr", fokker.sgld(step_size=0.15)
    with pytest.raises(NonFiniteError) as caught:
        fokker.sample(QUARTIC, kernel, draws=100_000, warmup=0, chains=2, progress=False, store=path)
    assert caught.value.run.state == fokker.open(path).state == "failed"
    with pytest.raises(StoreError, match="with this kernel"):
        fokker.resume(path, QUARTIC, fokker.sgld(step_size=0.1), progress=False)
    assert fokker.open(path).state == "failed"  # as it was
    with pytest.raises(NonFiniteError) as again:
        fokker.resume(path, QUARTIC, kernel, progress=False)
    assert again.value.run.state == fokker.open(path).state == "failed"


def test_an_error_that_is_overcome_leaves_no_trace(tmp_path, monkeypatch, quick):
    want = theta(fokker.sample(TARGET, KERNEL, **SETTINGS))

    draw = Chains.draw

    def stop(error, at):
        calls = []

        def stopped(self, count, then):
            calls.append(count)
            if len(calls) == at:
                raise error
            return draw(self, count, then)

        monkeypatch.setattr(Chains, "draw", stopped)

    path = tmp_path / "run.zarr"
    stop(RuntimeError("lost"), at=4)
    with pytest.raises(RuntimeError, match="lost") as caught:
        fokker.sample(TARGET, KERNEL, **SETTINGS, store=path)
    opened = fokker.open(path)
    assert caught.value.run.state == opened.state == "failed" and opened.draws.sizes["draw"] > 0
    stop(KeyboardInterrupt(), at=2)
    again = fokker.resume(path, TARGET, KERNEL, progress=False)
    assert again.state == fokker.open(path).state == "interrupted"
    stop(None, at=-1)
    check_resumes(path, want)
    assert fokker.open(path).state == "complete"


def test_a_full_disk_fails_the_run_in_hand_and_interrupts_the_stored_one(tmp_path, monkeypatch, quick):
    fokker.sample(TARGET, KERNEL, **SETTINGS)  # compiles
    path, writes = tmp_path / "run.zarr", []

    def full(self, length):
        writes.append(length)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(chunks.Draws, "write", full)
        with pytest.raises(StoreError, match="No space left") as caught:
            fokker.sample(TARGET, KERNEL, **SETTINGS, store=path)
    assert caught.value.run.state == "failed" and fokker.open(path).state == "interrupted"
