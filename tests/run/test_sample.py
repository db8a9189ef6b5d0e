"""The run: draws that do not depend on how they were made, storage, resumption, and what is refused."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fokker
from fokker.errors import InputError, NonFiniteError, StoreError
from fokker.run import sample as sample_module
from fokker.run.loop import Chains
from fokker.run.plan import make_plan

RNG = np.random.default_rng(0)
X = RNG.standard_normal((500, 3)).astype(np.float32)
Y = (RNG.random(500) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5, 0.2])))).astype(np.float32)
TARGET = fokker.glm(X, Y, names=["a", "b", "c"])
SGLD = fokker.sgld(step_size=1e-3)
QUIET = dict(progress=False, batch_size=50, chains=2, warmup=20, draws=60, thin=3)


def beta(run):
    return np.asarray(run.draws["beta"])


def test_draws_do_not_depend_on_chunks_threads_or_blocks(tmp_path, monkeypatch):
    want = beta(fokker.sample(TARGET, SGLD, **QUIET))
    stored = fokker.sample(TARGET, SGLD, **QUIET, store=tmp_path / "run.zarr")
    assert (beta(stored) == want).all()
    monkeypatch.setattr("fokker.run.loop.BLOCK_SECONDS", 1e-9)  # blocks of one draw
    assert (beta(fokker.sample(TARGET, SGLD, **QUIET)) == want).all()
    monkeypatch.setattr("fokker.run.loop.os.sched_getaffinity", lambda pid: {0})  # one thread
    assert (beta(fokker.sample(TARGET, SGLD, **QUIET)) == want).all()


def test_a_block_that_was_begun_ahead_is_used_only_if_it_is_the_one_asked_for():
    def chains():
        beta = np.zeros(4, np.float32)
        return Chains(
            make_plan(
                TARGET,
                SGLD,
                fokker.minibatch(),
                init={"beta": beta},
                draws=60,
                warmup=0,
                thin=3,
                chains=2,
                batch_size=50,
                batches=None,
                share_batches=False,
                seed=0,
                dtype="float32",
            )
        )

    def positions(asked):
        moving = chains()
        return np.concatenate([moving.draw(count, then).positions for count, then in asked], axis=1)

    want = positions([(20, 0)])
    for asked in [(5, 15), (15, 5)], [(5, 15), (5, 10), (10, 10)], [(1, 1), (7, 12), (12, 3)]:
        assert (positions(asked) == want).all()


def test_a_chain_is_the_same_whatever_runs_beside_it():
    together = beta(fokker.sample(TARGET, SGLD, **QUIET))
    alone = beta(fokker.sample(TARGET, SGLD, **{**QUIET, "chains": 1}))
    assert (together[0] == alone[0]).all() and (together[0] != together[1]).any()


def test_the_thinned_run_holds_every_third_draw_of_the_long_one():
    thinned = beta(fokker.sample(TARGET, SGLD, **QUIET))
    every = beta(fokker.sample(TARGET, SGLD, **{**QUIET, "thin": 1, "draws": 180}))
    np.testing.assert_allclose(thinned, every[:, 2::3], rtol=1e-4, atol=1e-5)


def test_another_seed_gives_other_draws():
    one, two = (beta(fokker.sample(TARGET, SGLD, **QUIET, seed=s)) for s in (0, 1))
    assert (one != two).all()


@pytest.mark.parametrize("gradient", [fokker.control_variates(), fokker.svrg(refresh_every=25)], ids=["cv", "svrg"])
def test_estimators_run_and_resume_bit_for_bit(tmp_path, gradient):
    want = beta(fokker.sample(TARGET, SGLD, gradient=gradient, **QUIET))
    short = {**QUIET, "draws": 17}
    fokker.sample(TARGET, SGLD, gradient=gradient, **short, store=tmp_path / "run.zarr")
    got = fokker.resume(tmp_path / "run.zarr", TARGET, SGLD, gradient=gradient, draws=60, progress=False)
    assert (beta(got) == want).all() and got.state == "complete"


@pytest.mark.slow  # in the quick suite: test_tune.py, test_a_tuned_run_is_resumed_with_what_it_chose
def test_a_tuned_run_resumes_with_what_was_chosen(tmp_path):
    settings = dict(gradient=fokker.control_variates())
    quiet = {**QUIET, "batch_size": 20, "warmup": 10}
    want = beta(fokker.sample(TARGET, fokker.sghmc(), **settings, **quiet))
    short = fokker.sample(TARGET, fokker.sghmc(), **settings, **{**quiet, "draws": 20}, store=tmp_path / "run.zarr")
    assert short.settings["chosen"]["kernel"]["step_size"] > 0
    got = fokker.resume(tmp_path / "run.zarr", TARGET, fokker.sghmc(), **settings, draws=60, progress=False)
    assert (beta(got) == want).all()


def test_other_versions_are_named_when_a_run_goes_on_and_kept(tmp_path, monkeypatch):
    path, short = tmp_path / "run.zarr", {**QUIET, "draws": 20}
    want = beta(fokker.sample(TARGET, SGLD, **QUIET))
    fokker.sample(TARGET, SGLD, **short, store=path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fokker.resume(path, TARGET, SGLD, draws=30, progress=False)  # the same versions: not a word
    now = sample_module._versions()
    assert set(now) == {"fokker", "jax", "jaxlib", "numpy", "numba"}
    monkeypatch.setattr(sample_module, "_versions", lambda: now | {"jax": "0.0.1", "numba": "9.9"})
    with pytest.warns(UserWarning, match=rf"jax {now['jax']} \(now 0\.0\.1\), numba {now['numba']} \(now 9\.9\)"):
        fokker.resume(path, TARGET, SGLD, draws=40, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = fokker.resume(path, TARGET, SGLD, draws=60, progress=False)  # said once
    assert run.settings["resumed_with"] == [{"draws": 30, "versions": now | {"jax": "0.0.1", "numba": "9.9"}}]
    assert (beta(run) == want).all()


def test_chains_that_share_batches_are_those_that_run_alone_on_them(monkeypatch):
    """In turn or vmapped, chain 0 sees the batches that are its own."""
    alone = beta(fokker.sample(TARGET, SGLD, **{**QUIET, "chains": 1}))
    in_turn = beta(fokker.sample(TARGET, SGLD, **QUIET, share_batches=True))
    monkeypatch.setattr("fokker.run.blocks.ONE_BY_ONE", 0)
    vmapped = beta(fokker.sample(TARGET, SGLD, **QUIET, share_batches=True))
    np.testing.assert_allclose(in_turn[0], alone[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vmapped, in_turn, rtol=1e-4, atol=1e-5)
    assert (in_turn[0] != in_turn[1]).any()


def test_shared_batches_run_and_resume(tmp_path):
    want = beta(fokker.sample(TARGET, SGLD, **QUIET, share_batches=True))
    fokker.sample(TARGET, SGLD, **{**QUIET, "draws": 31}, share_batches=True, store=tmp_path / "run.zarr")
    got = fokker.resume(tmp_path / "run.zarr", TARGET, SGLD, draws=60, progress=False)
    assert (beta(got) == want).all()


def test_data_on_disk_run_and_resume(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    data = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy"}
    target = fokker.Target(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, rows: rows["y"] * (rows["x"] @ p) - jax.nn.softplus(rows["x"] @ p),
        data,
        start=np.zeros(3),
    )
    want = np.asarray(fokker.sample(target, SGLD, **QUIET).draws["theta"])
    fokker.sample(target, SGLD, **{**QUIET, "draws": 31}, store=tmp_path / "run.zarr")
    got = fokker.resume(tmp_path / "run.zarr", target, SGLD, draws=60, progress=False)
    assert (np.asarray(got.draws["theta"]) == want).all()


def test_an_iterator_of_batches_is_marked_as_not_resumable(tmp_path):
    batches = [(X[i : i + 50], Y[i : i + 50]) for i in range(0, 500, 50)]
    target = fokker.Target(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, rows: rows[1] * (rows[0] @ p) - jax.nn.softplus(rows[0] @ p),
        fokker.IteratorSource(iter(batches * 1000), size=500),
        start=np.zeros(3),
    )
    run = fokker.sample(target, SGLD, **QUIET, share_batches=True, store=tmp_path / "run.zarr")
    assert run.settings["resumable"] is False
    with pytest.raises(StoreError, match="iterator"):
        fokker.resume(tmp_path / "run.zarr", target, SGLD, draws=100, progress=False)


def test_double_precision_changes_no_global_setting():
    run = fokker.sample(TARGET, SGLD, **QUIET, dtype="float64")
    assert run.draws["beta"].dtype == np.float64
    assert jnp.asarray(np.ones(1)).dtype == np.float32


def test_summary_and_arviz(tmp_path):
    run = fokker.sample(TARGET, SGLD, **QUIET, store=tmp_path / "run.zarr")
    summary = run.summary()
    assert list(summary.index) == ["beta[a]", "beta[b]", "beta[c]", "beta[intercept]"]
    np.testing.assert_allclose(summary["mean"], beta(run).mean((0, 1)), rtol=1e-5)
    tree = run.to_arviz()
    assert tree["posterior"]["beta"].shape == (2, 60, 4)
    again = fokker.open(tmp_path / "run.zarr")
    assert (beta(again) == beta(run)).all() and again.state == "complete"
    with pytest.raises(InputError, match="no variable 'gamma'; there are beta"):
        run.summary(["gamma"])


def test_cyclical_exploration_keeps_only_draws():
    kernel = fokker.sgld(step_size=1e-3, schedule=fokker.cyclical(period=30, exploration=0.5))
    run = fokker.sample(TARGET, kernel, **{**QUIET, "warmup": 0, "thin": 1})
    assert run.draws.sizes["draw"] == 60
    assert (np.asarray(run.stats["step_size"]) <= 1e-3 * (1 + np.cos(np.pi / 2)) / 2 + 1e-9).all()


def test_ctrl_c_returns_what_there_is(monkeypatch, tmp_path):
    draw, calls = Chains.draw, []

    def interrupted(self, count, then):
        calls.append(count)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw(self, min(count, 5), then)

    monkeypatch.setattr(Chains, "draw", interrupted)
    run = fokker.sample(TARGET, SGLD, **QUIET, store=tmp_path / "run.zarr")
    assert run.state == "interrupted" and run.draws.sizes["draw"] == 15
    monkeypatch.undo()
    whole = beta(fokker.sample(TARGET, SGLD, **QUIET))
    assert (beta(run) == whole[:, :15]).all()
    assert (beta(fokker.resume(tmp_path / "run.zarr", TARGET, SGLD, progress=False)) == whole).all()


def test_a_step_too_large_names_chain_iteration_and_cure(tmp_path):
    target = fokker.Target.from_log_density(lambda x: -jnp.sum(x**4), start=np.full(2, 0.1))
    kernel = fokker.sgld(step_size=0.15)
    with pytest.raises(
        NonFiniteError, match=r"chain \d, iteration \d+: theta\[\d\] became .*step size is 0.15.*smaller"
    ) as caught:
        fokker.sample(target, kernel, draws=100_000, warmup=0, chains=2, progress=False, store=tmp_path / "run.zarr")
    kept = np.asarray(caught.value.run.draws["theta"])
    assert np.isfinite(kept).all()
    reopened = np.asarray(fokker.open(tmp_path / "run.zarr").draws["theta"])
    assert (reopened == kept).all()


def test_noise_that_cannot_be_compensated_names_the_largest_step():
    with pytest.raises(InputError, match=r"chain \d, iterations? \d+.*step of at most") as caught:
        fokker.sample(TARGET, fokker.sgld(step_size=0.05), gradient=fokker.minibatch(noise="diagonal"), **QUIET)
    assert caught.value.run.state == "failed"
    step = float(re.search(r"at most ([\d.e-]+)", str(caught.value))[1])
    run = fokker.sample(TARGET, fokker.sgld(0.3 * step), gradient=fokker.minibatch(noise="diagonal"), **QUIET)
    assert 0.05 < float(run.stats["noise_share"].max()) < 1


def growing(factor):
    """A schedule under which the share of gradient noise passes 1 in the middle of a run."""
    return fokker.sgld(factor, schedule=lambda t: 1.0 + 0.01 * t)


@pytest.mark.parametrize("thin", [1, 7])
@pytest.mark.parametrize("chains, shared", [(1, False), (3, True)])
def test_the_draws_before_noise_that_cannot_be_compensated_are_kept(tmp_path, thin, chains, shared):
    settings = QUIET | dict(draws=60, thin=thin, warmup=0, chains=chains, share_batches=shared)
    noisy = fokker.minibatch(noise="diagonal")
    fine = fokker.sample(TARGET, growing(1e-4), gradient=noisy, **settings)
    limit = np.asarray(fine.stats["noise_share"])[:, 30].max()
    for store in (None, tmp_path / "run.zarr"):
        with pytest.raises(InputError, match="step of at most") as caught:
            fokker.sample(TARGET, growing(1e-4 / limit), gradient=noisy, store=store, **settings)
        kept = caught.value.run.draws["beta"]
        last = int(re.search(r"(\d+): the gradient noise", str(caught.value))[1])
        assert 10 < kept.sizes["draw"] < 60 and last == (kept.sizes["draw"] + 1) * thin
        assert float(caught.value.run.stats["noise_share"].max()) <= 1 and np.isfinite(kept.values).all()


def test_the_share_of_noise_is_that_of_every_step_and_not_of_kept_ones():
    """A schedule whose step is large at iterations that no draw is kept at."""
    spike = fokker.sgld(1e-5, schedule=lambda t: jnp.where(t % 10 == 3, 50.0, 1.0))
    settings = QUIET | dict(draws=20, warmup=0)
    noisy = fokker.minibatch(noise="diagonal")
    largest = {
        thin: float(
            fokker.sample(TARGET, spike, gradient=noisy, **settings | dict(thin=thin)).stats["noise_share"].max()
        )
        for thin in (1, 10)
    }
    assert abs(largest[10] / largest[1] - 1) < 0.5


@pytest.mark.parametrize("when, stops", [(3, False), (52, True)])
def test_noise_that_cannot_be_compensated_stops_a_run_after_its_warm_up(when, stops):
    """Before, the estimate of the noise rests on few batches, and no draw is kept."""
    spike = fokker.sgld(1e-5, schedule=lambda t: jnp.where(t == when, 1e3, 1.0))
    call = lambda: fokker.sample(
        TARGET, spike, gradient=fokker.minibatch(noise="diagonal"), **QUIET | dict(warmup=50, thin=5)
    )
    if not stops:
        assert float(call().stats["noise_share"].max()) < 1
        return
    with pytest.raises(InputError, match=r"iterations 51 to 55: the gradient noise"):
        call()


SUMMED = fokker.Target(lambda p: 0.0 * p.sum(), lambda p, b: (b @ p).sum(), X, start=np.zeros(3))
VECTOR_PRIOR = fokker.Target(lambda p: p, lambda p, b: b @ p, X, start=np.zeros(3))
VECTOR = fokker.Target.from_log_density(lambda p: p, start=np.zeros(3))
REFUSED = [
    ("wrong shape of the likelihood", dict(target=SUMMED), "one number per row"),
    ("a prior that is a vector", dict(target=VECTOR_PRIOR), "log_prior must return a scalar"),
    ("a density that is a vector", dict(target=VECTOR, batch_size=None), "log density must return a scalar"),
    ("mismatched parameters", dict(init={"gamma": np.zeros(7)}), "could not be evaluated"),
    ("no start", dict(target=fokker.Target(lambda p: 0.0, lambda p, b: b @ p, X)), "needs a start"),
    ("NaN data", dict(target=fokker.glm(np.where(np.arange(500)[:, None] == 7, np.nan, X), Y)), "row 7"),
    ("a large batch", dict(batch_size=501), "batch_size=501 for 500 rows"),
    ("unknown keyword", dict(num_samples=5), "did you mean draws="),
    ("misspelt keyword", dict(chanis=5), "did you mean chains="),
    ("no target", dict(target=lambda x: 0.0), "fokker.Target"),
    ("draws", dict(draws=0), "draws must be a whole number >= 1"),
    ("dtype", dict(dtype="float16"), "dtype must be"),
    ("order of batches", dict(batches="random"), "'epochs' or 'independent'"),
    ("infinite start", dict(init={"beta": np.array([np.inf, 0, 0, 0])}), "not finite"),
    ("full data and a batch size", dict(kernel=fokker.hmc(step_size=0.1)), "leave batch_size out"),
]  # fmt: skip


@pytest.mark.parametrize("given, message", [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_bad_input_is_refused_at_the_door(given, message):
    arguments = {"target": TARGET, "kernel": SGLD, **QUIET, **given}
    target, kernel = arguments.pop("target"), arguments.pop("kernel")
    with pytest.raises(InputError, match=message):
        fokker.sample(target, kernel, **arguments)


def test_a_likelihood_of_rows_needs_data():
    with pytest.raises(InputError, match="without data"):
        fokker.Target(lambda p: 0.0, lambda p, b: b)


def test_another_target_kernel_or_data_is_not_resumed(tmp_path):
    path, start = tmp_path / "run.zarr", {"beta": np.ones(4)}
    fokker.sample(TARGET, SGLD, init=start, **QUIET, store=path)
    with pytest.raises(StoreError, match="resume it, choose another path"):
        fokker.sample(TARGET, SGLD, **QUIET, store=path)
    with pytest.raises(StoreError, match="with this kernel"):
        fokker.resume(path, TARGET, fokker.sgld(step_size=2e-3), init=start, draws=100, progress=False)
    with pytest.raises(StoreError, match="with this data"):
        fokker.resume(path, fokker.glm(X + 1, Y, names=["a", "b", "c"]), SGLD, init=start, draws=100, progress=False)
    with pytest.raises(StoreError, match="with this log_density"):
        fokker.resume(
            path,
            fokker.glm(X, Y, names=["a", "b", "c"], prior_scale=1e-3),
            SGLD,
            init=start,
            draws=100,
            progress=False,
        )


CHILD = """
    import sys, numpy as np, fokker
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 3)).astype(np.float32)
    Y = (X[:, 0] > 0).astype(np.float32)
    target = fokker.glm(X, Y)
    kernel = fokker.sghmc(step_size=1e-2, friction=1.0)
    arguments = dict(draws=1_000_000, warmup=10, thin=2, chains=2, batch_size=20, progress=False)
    if sys.argv[2] == "whole":
        np.save(sys.argv[1], np.asarray(fokker.sample(target, kernel, **arguments).draws["beta"]))
    elif sys.argv[2] == "begin":
        print("ready", flush=True)
        fokker.sample(target, kernel, **arguments, store=sys.argv[1])
    else:
        print("ready", flush=True)
        fokker.resume(sys.argv[1], target, kernel, progress=False)
        print("done", flush=True)
"""


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_instants_the_draws_are_those_of_an_uninterrupted_run(tmp_path, kills):
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    environment = {**os.environ, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    call = lambda *words: subprocess.Popen(
        [sys.executable, str(script), *map(str, words)], stdout=subprocess.PIPE, env=environment
    )
    assert call(tmp_path / "whole.npy", "whole").wait(timeout=120) == 0
    rng, path, mode, killed = np.random.default_rng(kills), tmp_path / "run.zarr", "begin", 0
    while killed < kills:
        child = call(path, mode)
        child.stdout.readline()
        before = time.monotonic()
        while mode == "begin" and not (path / "checkpoint" / "commit.json").exists() and time.monotonic() - before < 60:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.5 if mode == "begin" else 4.0))
        finished = child.poll() is not None
        if finished:
            assert child.returncode == 0
            break  # the run was complete before the next kill
        child.send_signal(signal.SIGKILL)
        child.wait()
        killed, mode = killed + 1, "resume"
    last = call(path, "resume")
    assert last.wait(timeout=240) == 0
    assert killed >= 1
    assert (beta(fokker.open(path)) == np.load(tmp_path / "whole.npy")).all()


# --- what a run must not let pass -------------------------------------------------------------------------------------


def test_a_cycle_in_which_no_draw_would_be_kept_is_refused():
    explores = fokker.sgld(1e-5, schedule=fokker.cyclical(100, exploration=0.5))
    with pytest.raises(InputError, match="no draw would ever be kept: every 100th iteration after a warm-up of 120"):
        fokker.sample(TARGET, explores, **QUIET | dict(thin=100, warmup=120, draws=5))
    run = fokker.sample(TARGET, explores, **QUIET | dict(thin=99, warmup=120, draws=5))
    assert run.draws.sizes["draw"] == 5


@pytest.mark.parametrize("settings", [dict(warmup=10), dict(warmup=0)])
def test_draws_before_the_end_of_adaptation_are_refused(settings):
    with pytest.raises(InputError, match="pass warmup="):
        fokker.sample(TARGET, fokker.psgld(1e-5, adapt_steps=100), **QUIET | settings)


def test_a_density_that_is_not_finite_at_a_start_is_refused():
    gamma = fokker.Target.from_log_density(lambda p: jnp.log(p) - p)
    with pytest.raises(InputError, match="start of chain 1 is nan"):
        fokker.sample(gamma, fokker.hmc(0.1), init=[np.ones(()), -np.ones(())], **QUIET | dict(batch_size=None))


def wide(p):
    return -0.5 * (p**2).sum()


def test_a_state_of_another_version_is_not_taken_up(tmp_path, monkeypatch):
    """A kernel that keeps more than it did is told by the leaves of its state."""
    target, kernel = fokker.Target(wide, None, start=np.ones(2)), fokker.gmc(0.1)
    fokker.sample(target, kernel, store=tmp_path / "run.zarr", **QUIET | dict(batch_size=None))
    restore = Chains.restore
    monkeypatch.setattr(Chains, "restore", lambda self, leaves, *more: restore(self, leaves[:3], *more))
    with pytest.raises(StoreError, match="not one of this version's gmc"):
        fokker.resume(tmp_path / "run.zarr", target, kernel, draws=90, progress=False)


def test_a_constraint_is_known_by_its_values_not_by_its_name(tmp_path):
    def circle(x):
        return x @ x - 1

    settings, kernel = QUIET | dict(batch_size=None), fokker.chmc(0.1)
    first, again = (
        fokker.Target(wide, None, space=fokker.Implicit(c, 2), start=UP) for c in (circle, lambda x: x @ x - 1)
    )
    fokker.sample(first, kernel, store=tmp_path / "run.zarr", **settings)
    assert fokker.resume(tmp_path / "run.zarr", again, kernel, draws=90, progress=False).draws.sizes["draw"] == 90


UP = np.array([0.0, 1.0])
ANOTHER = {
    "a prior that says nothing at the start": (
        (fokker.glm(X, Y), fokker.sgld(1e-5)), (fokker.glm(X, Y, prior_scale=0.01), fokker.sgld(1e-5)), "log_density"
    ),
    "a schedule": (
        (TARGET, fokker.sgld(1e-5, schedule=lambda t: 1.0)),
        (TARGET, fokker.sgld(1e-5, schedule=lambda t: 0.1)),
        "functions",
    ),
    "a metric": (
        (TARGET, fokker.sgrld(1e-5, metric_inverse=lambda p: 1.0)),
        (TARGET, fokker.sgrld(1e-5, metric_inverse=lambda p: 50.0)),
        "functions",
    ),
    "a space": (
        (fokker.Target(wide, None, space=fokker.Ball(2), start=np.full(2, 0.3)), fokker.gmc(0.1)),
        (fokker.Target(wide, None, space=fokker.Box(0.0, np.ones(2)), start=np.full(2, 0.3)), fokker.gmc(0.1)),
        "space",
    ),
    "no space": (
        (fokker.Target(wide, None, space=fokker.Sphere(2), start=np.array([0.6, 0.8])), fokker.gmc(0.1)),
        (fokker.Target(wide, None, start=np.array([0.6, 0.8])), fokker.gmc(0.1)),
        "space",
    ),
    "a constraint": (
        (fokker.Target(wide, None, space=fokker.Implicit(lambda x: x @ x - 1, 2), start=UP), fokker.chmc(0.1)),
        (fokker.Target(wide, None, space=fokker.Implicit(lambda x: x[1] - 1, 2), start=UP), fokker.chmc(0.1)),
        "functions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ANOTHER)
def test_what_looks_the_same_and_is_another_is_not_resumed(tmp_path, case):
    (target, kernel), (other_target, other_kernel), name = ANOTHER[case]
    settings = QUIET | (dict(batch_size=None) if target.data is None else {})
    fokker.sample(target, kernel, store=tmp_path / "run.zarr", **settings)
    with pytest.raises(StoreError, match=f"cannot be continued with this {name}"):
        fokker.resume(tmp_path / "run.zarr", other_target, other_kernel, draws=90, progress=False)
    if name == "space":
        with pytest.raises(InputError, match="made with another space"):
            fokker.open(tmp_path / "run.zarr").audit(target=other_target, kernel=other_kernel)
    assert fokker.resume(tmp_path / "run.zarr", target, kernel, draws=90, progress=False).draws.sizes["draw"] == 90
    with pytest.raises(InputError, match="would be fewer"):
        fokker.resume(tmp_path / "run.zarr", target, kernel, draws=50, progress=False)
