"""The audit: right runs are not red, no broken one is green; what it says is kept, shown, and refused where it must be.

The targets here are small and their posteriors known; thirty larger runs are in experiments/audit (slow).
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fokker
from experiments.audit import runs, table
from fokker.errors import InputError
from fokker.run.audit import Audit, Finding, posterior, verdict
from fokker.run.audit.draws import Draws, of_draws
from fokker.run.audit.score import score_identities

ROWS, PRECISION = 500, np.array([1.0, 1.5])
RIGHT = {"draws": 1000, "warmup": 400, "thin": 20, "batch_size": 50, "progress": False}


def target(size=ROWS):
    """Rows y ~ N(theta, 1 / a) with a known: the posterior is N(0, 1 / (size a)), its two coordinates independent."""
    y = np.random.default_rng(0).standard_normal((size, 2))
    y = (y - y.mean(0)) / y.std(0) / np.sqrt(PRECISION)
    likelihood = lambda theta, rows: -0.5 * ((rows["y"] - theta) ** 2 * jnp.asarray(PRECISION, jnp.float32)).sum(-1)
    return fokker.Target(lambda theta: 0.0 * theta.sum(), likelihood, {"y": y}, start=np.zeros(2))


def two_wells(theta):
    first = -0.5 * (theta**2).sum()
    return jnp.logaddexp(first, -0.5 * ((theta - 15.0) ** 2).sum())


def audit_of(kernel, of=None, seconds=5.0, **settings):
    run = fokker.sample(target() if of is None else of, kernel, **{**RIGHT, **settings})
    return run.audit(seconds=seconds)


def test_a_right_run_is_green():
    """eps a = 0.05 and 0.075: sds are 1 to 2 % too large, and the audit says so."""
    audit = audit_of(fokker.sgld(1e-4), gradient=fokker.control_variates())
    assert audit.verdict == "green", audit
    x = 1e-4 * ROWS * PRECISION
    want = np.sqrt(2 / (2 - x)) - 1
    assert abs(audit["step-size bias"].value - want.max()) < 0.01
    assert abs(audit["noise share"].value) < 1e-3
    assert abs(audit["gradient scale"].value - 1) < 1e-2


def test_a_step_too_large_is_red():
    """eps a = 0.6 and 0.9: sds are 20 and 35 % too large."""
    audit = audit_of(fokker.sgld(1.2e-3), gradient=fokker.control_variates())
    assert audit.verdict == "red"
    for name in ("spread by the score", "step-size bias"):
        assert audit[name].verdict == "fail", audit
    assert abs(audit["spread by the score"].value - np.sqrt(2 / (2 - 0.9))) < 0.08


def test_gradient_noise_is_red():
    """eps V / 2 is 0.9 at a batch of 20: sds are 38 % too large by the closed form."""
    eps, batch = 7.5e-5, 20
    audit = audit_of(fokker.sgld(eps), batch_size=batch, batches="independent")
    V = ROWS**2 * PRECISION / batch * (1 - batch / ROWS)
    factor = np.sqrt(1 + eps * V / 2)
    assert audit.verdict == "red"
    assert audit["gradient noise"].verdict == "fail", audit
    # 25 independent windows determine V to 4 sqrt(2 / 25)
    assert abs(audit["noise share"].value / (eps * V.max() / 2) - 1) < 4 * np.sqrt(2 / 25)
    assert abs(audit["gradient noise"].value - (factor.max() - 1)) < 0.3
    assert "control_variates()" in audit["gradient noise"].evidence


def test_a_stuck_chain_is_red():
    audit = audit_of(fokker.sgld(1e-22), init=[np.full(2, 0.1 * c) for c in range(4)], draws=50)
    assert audit.verdict == "red"
    assert audit["movement"].verdict == "fail" and "float64" in audit["movement"].evidence
    assert "stuck" in audit["spread by the score"].evidence


def test_one_mode_of_two_is_red():
    """All chains agree, every moment is right within the mode, and half of the mass is missing."""
    wells = fokker.Target.from_log_density(two_wells, start=np.zeros(2))
    settings = {"draws": 500, "warmup": 50, "thin": 1, "batch_size": None}
    audit = audit_of(fokker.hmc(step_size=0.5, leapfrog_steps=3), wells, seconds=15.0, **settings)
    assert audit["agreement of chains"].verdict == "ok"
    assert audit.verdict == "red" and audit["other modes"].verdict == "fail"
    assert abs(audit["other modes"].value - 1) < 0.1


def test_a_wrong_scale_is_red():
    """The factor N / n taken twice as large."""
    audit = audit_of(fokker.sgld(5e-5), gradient=runs.scaled(2.0), batch_size=250)
    assert audit.verdict == "red"
    assert audit["gradient scale"].verdict == "fail" and "N/n" in audit["gradient scale"].evidence
    assert abs(audit["gradient scale"].value - 2) < 0.02
    assert audit["spread by the score"].verdict == "fail"


def test_a_run_that_is_too_short_is_red():
    settings = {"draws": 30, "thin": 1, "gradient": fokker.control_variates()}
    audit = audit_of(fokker.sgld(1e-4), **settings)
    assert audit.verdict == "red"
    assert audit["effective draws"].verdict == "fail"


def test_three_draws_are_no_sample():
    audit = audit_of(fokker.sgld(1e-4), draws=3)
    assert audit.verdict == "red" and "no sample" in audit["effective draws"].evidence


def test_what_was_measured_is_kept_with_the_draws(tmp_path):
    """A reader is shown the audit that was measured; without one, what the draws say and what is missing."""
    path = tmp_path / "run.zarr"
    run = fokker.sample(target(), fokker.sgld(1e-4), **{**RIGHT, "draws": 200}, store=path)
    alone = fokker.open(path).audit()
    assert alone.verdict != "green"
    assert "target=..." in alone["spread by the score"].evidence
    assert {f.name for f in alone.findings if f.verdict == "not measured"} >= {"gradient noise", "other modes"}
    measured = run.audit(seconds=1.0)
    assert fokker.open(path).audit() == measured
    again = fokker.open(path).audit(target=target(), kernel=fokker.sgld(1e-4), seconds=1.0)
    assert again["spread by the score"] == measured["spread by the score"]
    with pytest.raises(InputError, match="another kernel"):
        fokker.open(path).audit(target=target(), kernel=fokker.sgld(2e-4))


def test_an_audit_survives_json():
    findings = (Finding("a", 1.5, None, "ok", "seen"), Finding("b", None, 2.0, "not measured", "not seen"))
    audit = Audit("amber", "words", findings, 100, 1.25)
    assert Audit.from_dict(json.loads(json.dumps(audit.to_dict()))) == audit
    assert audit["b"].threshold == 2.0
    with pytest.raises(InputError, match="there are a, b"):
        audit["c"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    findings = (Finding("agreement of chains", 1.2345, 1.02, "fail", "A sentence of evidence. " * 8),)
    shown = str(Audit("red", "Do not use these draws.", findings, 100, 1.0))
    assert shown.startswith("RED: Do not use these draws.")
    assert 60 < max(map(len, shown.splitlines())) <= width
    assert "FAIL" in shown and "1.23" in shown


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "long"])
def test_seconds_must_be_a_positive_number(seconds):
    run = fokker.sample(target(), fokker.sgld(1e-4), **{**RIGHT, "draws": 4, "warmup": 0})
    with pytest.raises(InputError, match="seconds"):
        run.audit(seconds=seconds)


def test_verdicts_at_their_limits():
    assert [verdict.grade(v, (0.05, 0.1)) for v in (0.05, 0.06, 0.11, np.nan)] == ["ok", "warn", "fail", "fail"]
    errors, ses = np.array([0.2, 0.07]), np.array([0.1, 0.001])
    assert verdict.worst(errors, ses, (0.05, 0.1))[1:] == (1, "warn")  # the larger one is not significant
    assert verdict.worst(errors, np.array([0.1, 0.1]), (0.05, 0.1)).verdict == "not measured"
    assert verdict.worst(errors, np.array([0.01, 0.01]), (0.05, 0.1))[1:] == (0, "fail")
    assert verdict.worst(np.zeros(2), np.array([np.nan, 0.0]), (0.05, 0.1)).verdict == "not measured"


def test_a_trend_is_seen_and_noise_is_not():
    """Chains that move by one sd over the run; 40 samples of chains that do not."""
    still = lambda seed: np.random.default_rng(seed).standard_normal((4, 300, 3))
    moving = still(0) + np.linspace(-0.5, 0.5, 300)[:, None]
    by_name = lambda x: {f.name: f for f in of_draws(Draws.from_array(x, ["a", "b", "c"]))}
    assert by_name(moving)["trend"].verdict == "fail"
    assert abs(by_name(moving)["trend"].value - 2 / 3 / np.sqrt(1 + 1 / 12)) < 0.3
    assert sum(by_name(still(seed))["trend"].verdict != "ok" for seed in range(40)) <= 3


def test_a_chain_that_never_moved_has_no_effective_draws():
    x = np.random.default_rng(0).standard_normal((4, 300, 2))
    x[2] = x[2, 0]
    found = {f.name: f for f in of_draws(Draws.from_array(x, ["a", "b"], may_reject=True))}
    assert found["effective draws"].verdict == found["movement"].verdict == "fail"
    assert found["effective draws"].value == 0 and "larger step" not in found["effective draws"].evidence
    assert found["trend"].value is None and "init=" in found["movement"].evidence


def test_an_error_beyond_its_limit_that_may_be_chance_says_so():
    """One sd of a few draws is off by more than the limit; nothing says that the law is."""
    errors, ses = np.array([0.07, 0.01]), np.array([0.04, 0.01])
    value, i, colour = verdict.worst(errors, ses, (0.05, 0.10))
    assert (value, i, colour) == (0.07, 0, "ok")
    assert verdict.excused(colour, value, (0.05, 0.10)) == " Beyond the limit, within its error."
    assert verdict.excused("ok", 0.04, (0.05, 0.10)) == verdict.excused("warn", 0.07, (0.05, 0.10)) == ""
    noisy = np.random.default_rng(3).standard_normal((2, 60, 3))
    trends = [
        next(f for f in of_draws(Draws.from_array(noisy[:, s:], list("abc"))) if f.name == "trend") for s in (0, 9)
    ]
    for trend in trends:
        assert trend.verdict == "ok"
        assert ("within its error" in trend.evidence) == (abs(trend.value) > trend.threshold)
    assert any("within its error" in trend.evidence for trend in trends)


def at_draws(points, density):
    """Exact gradients at independent draws (n, d), as four chains of the audit."""
    x = Draws.from_array(points.reshape(4, -1, points.shape[1]), [f"x{i}" for i in range(points.shape[1])])
    gradients = np.asarray(jax.vmap(jax.grad(lambda p: -density(p)))(jnp.asarray(x.flat)))
    where = np.array([(c, t) for c in range(4) for t in range(len(points) // 4)])
    return x, posterior.AtDraws(where, gradients, score_identities(x.positions, where, gradients))


def funnel(scale):
    """Neal's funnel: v ~ N(0, scale^2), x | v ~ N(0, e^v), with exact draws."""
    v, z = scale * np.random.default_rng(0).standard_normal(1000), np.random.default_rng(1).standard_normal((1000, 5))
    density = lambda p: -0.5 * (p[0] / scale) ** 2 - 0.5 * jnp.sum(p[1:] ** 2) * jnp.exp(-p[0]) - 2.5 * p[0]
    return np.column_stack([v, z * np.exp(v / 2)[:, None]]), density


def regression():
    """Logistic, 60 rows, with draws of its normal approximation."""
    X = np.random.default_rng(2).standard_normal((60, 3))
    y = np.random.default_rng(3).random(60) < 0.5
    density = lambda p: jnp.sum(y * (X @ p) - jnp.logaddexp(0.0, X @ p)) - jnp.sum(p**2) / 200
    mode = jnp.zeros(3)
    for _ in range(10):
        mode = mode - jnp.linalg.solve(jax.hessian(density)(mode), jax.grad(density)(mode))
    covariance = np.linalg.inv(-np.asarray(jax.hessian(density)(mode)))
    return np.random.default_rng(4).multivariate_normal(np.asarray(mode), covariance, 1000), density


@pytest.mark.parametrize(
    "made, colour", [(funnel(3.0), "warn"), (funnel(2.0), "warn"), (funnel(0.3), "ok"), (regression(), "ok")],
    ids=["Neal's funnel", "narrower", "all but normal", "regression"],
)  # fmt: skip
def test_curvature_that_differs_between_draws_asks_for_another_tool(made, colour):
    finding = posterior.even_curvature(*at_draws(*made))
    assert finding.verdict == colour, finding
    assert ("NUTS" in finding.evidence and "non-centred" in finding.evidence) == (colour == "warn")
    if colour == "ok":
        assert abs(finding.value - 1) < 0.35


class Rewinding:
    """Batches of rows drawn with replacement that can be taken up anywhere."""

    def __init__(self, rows, size):
        self.rows, self.size, self.count = rows, size, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return np.random.default_rng(self.count).choice(self.rows, self.size)

    def state(self):
        return {"count": self.count}

    def restore(self, state):
        self.count = state["count"]


def test_what_an_iterator_does_not_allow_is_said_and_the_rest_is_measured():
    rows = np.random.default_rng(0).normal(1, 1, 2000).astype(np.float32)
    once = (batch for batch in Rewinding(rows, 100))
    measured = {}
    for name, batches in (("rewinding", Rewinding(rows, 100)), ("once", once)):
        source = fokker.IteratorSource(batches, 2000)
        normal = fokker.Target(lambda p: 0.0 * p, lambda p, y: -0.5 * (y - p) ** 2, source, start=np.ones(()))
        kernel = fokker.sgld(1e-4)
        run = fokker.sample(normal, kernel, share_batches=True, draws=200, thin=20, warmup=200, batch_size=100,
                            progress=False)  # fmt: skip
        measured[name] = {f.name: f for f in run.audit(seconds=2).findings}
        missing = [f.evidence for f in measured[name].values() if f.verdict == "not measured"]
        assert len(missing) == {"rewinding": 7, "once": 9}[name] and all("iterator" in words for words in missing)
    assert "effective draws" in measured["once"]
    found = measured["rewinding"]
    # V = N^2 / n, so that eps V / 2 = 2: the variance is trebled, but for what the step makes of it
    share = 1e-4 * 2000**2 / 100 / 2
    assert abs(found["noise share"].value / share - 1) < 0.15
    assert found["gradient noise"].verdict == "fail"
    assert abs(found["gradient noise"].value / (np.sqrt(1 + share) - 1) - 1) < 0.1


@pytest.mark.slow
def test_thirty_runs_with_known_truth(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "write_page", lambda *_: None)
    for claim in table.main(out=tmp_path)["claims"]:
        assert claim["holds"] and claim["sound"], claim


def test_the_page_shows_the_table_on_record():
    text = table.PAGE.read_text(encoding="utf-8")
    kept = json.loads((table.PAGE.parents[1] / "experiments" / "audit" / "out" / "table.json").read_text())
    assert table.table(kept["rows"], kept["again"]) in text, "run python -m experiments.audit.table"
    assert len(kept["rows"]) == len(runs.RIGHT) + len(runs.BROKEN) == 30
    assert all(claim["holds"] and claim["sound"] for claim in kept["claims"])


def test_scaled_is_what_it_says():
    """The estimator of the broken runs: prior once, likelihood twice."""
    prior = dataclasses.replace(target(), log_prior=lambda theta: -0.5 * (theta**2).sum())
    rows = {"y": jnp.zeros((10, 2))}
    theta = jnp.array([1.0, -1.0])
    wrong = runs.scaled(2.0).bind(prior).estimate(None, theta, rows, None)[0]
    np.testing.assert_allclose(wrong, theta + 2 * ROWS * PRECISION * theta, rtol=1e-5)
