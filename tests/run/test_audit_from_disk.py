"""A stored run is audited with its target alone: where chains are is known from their draws, not from ``init``."""

import dataclasses
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fokker
from fokker.errors import InputError
from fokker.run.audit import _plan_again

KERNEL = fokker.sgld(step_size=0.1)
SHORT = {"draws": 6, "warmup": 2, "progress": False}


class Pair(NamedTuple):
    second: object  # before ``first``: not the order of a dict
    first: object


def normal(*entries):
    return -0.5 * sum(jnp.sum(x**2) for x in entries)


NESTED = {
    "array": (normal, np.zeros(3)),
    "number": (lambda p: normal(p + 0.0), 0.5),
    "dict": (lambda p: normal(p["b"], p["a"]), {"b": np.zeros(2), "a": 0.0}),
    "dict with theta": (lambda p: normal(p["theta"]), {"theta": np.zeros(3)}),
    "tuple": (lambda p: normal(*p), (np.zeros(2), np.zeros((2, 2)))),
    "many in a list": (lambda p: normal(*p) + 0.0 * p[10][2], [np.zeros(n + 1) for n in range(12)]),
    "list in dicts": (lambda p: normal(p["a"]["w"][1], *p["b"]), {"a": {"w": [0.0, np.ones(2)]}, "b": (1.0,)}),
    "names with dots": (lambda p: normal(p["a.b"], p["c"]), {"a.b": np.zeros(2), "c": 0.0}),
    "named fields": (lambda p: normal(p.first, p.second), Pair(np.zeros(2), np.zeros(3))),
    "named fields in a dict": (lambda p: normal(p["a"].first, p["a"].second), {"a": Pair(np.zeros(2), np.zeros(3))}),
    "numbers as keys": (lambda p: normal(p[2], p[10]), {10: np.zeros(2), 2: 0.0}),
}


@pytest.mark.parametrize("what, chains", [*((what, 2) for what in NESTED), ("many in a list", 1)])
def test_parameters_are_nested_again_as_the_target_expects_them(tmp_path, what, chains):
    density, init = NESTED[what]
    target = fokker.Target.from_log_density(density)
    run = fokker.sample(target, KERNEL, init=init, chains=chains, **SHORT, store=tmp_path / "run.zarr")
    plan = _plan_again(fokker.open(tmp_path / "run.zarr"), target, KERNEL, None)
    want = plan.layout.split(np.stack(plan.starts))
    assert list(want) == [v.name for v in run._plan.layout.variables]
    for name, last in want.items():
        np.testing.assert_array_equal(last, run.draws[name].values[:, -1])


def target_of_rows():
    y = np.random.default_rng(0).standard_normal((200, 2)).astype(np.float32)
    likelihood = lambda p, rows: -0.5 * ((rows - p["mean"]) ** 2).sum(-1)
    return fokker.Target(lambda p: -0.005 * (p["mean"] ** 2).sum(), likelihood, y)


def test_a_stored_run_is_audited_without_its_init(tmp_path):
    path, kernel = tmp_path / "run.zarr", fokker.sgld(2e-4)
    settings = {"draws": 100, "warmup": 100, "thin": 10, "batch_size": 50, "progress": False}
    fokker.sample(target_of_rows(), kernel, init={"mean": np.zeros(2)}, **settings, store=path)
    audit = fokker.open(path).audit(target=target_of_rows(), kernel=kernel, seconds=0.5)
    assert audit["other modes"].verdict == "ok" and not any("Needs target" in f.evidence for f in audit.findings)
    assert fokker.open(path).audit() == audit
    with_init = _plan_again(fokker.open(path), target_of_rows(), kernel, None, {"mean": np.zeros(2)})
    assert (np.stack(with_init.starts) == 0).all()
    with pytest.raises(InputError, match="another kernel"):
        fokker.open(path).audit(target=target_of_rows(), kernel=fokker.sgld(1e-4))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Own:
    """A class that JSON cannot name."""

    first: Any
    second: Any


def test_parameters_in_a_class_of_ones_own_ask_for_init(tmp_path):
    density = lambda p: normal(p["a"].first, p["a"].second)
    init, path = {"a": Own(np.zeros(2), np.zeros(3))}, tmp_path / "run.zarr"
    target = fokker.Target.from_log_density(density)
    fokker.sample(target, KERNEL, init=init, chains=2, **SHORT, store=path)
    opened = fokker.open(path)
    assert opened.settings["structure"] is None
    with pytest.raises(
        InputError, match=r"how the parameters a\.first, a\.second were nested.*pass the init= of the run"
    ):
        opened.audit(target=target, kernel=KERNEL)
    assert _plan_again(opened, target, KERNEL, None, init).layout.size == 5


def test_a_store_from_before_structures_were_kept_opens_and_goes_on(tmp_path):
    target, path = fokker.Target.from_log_density(normal), tmp_path / "run.zarr"
    fokker.sample(target, KERNEL, init=np.zeros(3), chains=2, **SHORT, store=path)
    kept = json.loads((path / "run.json").read_text())
    del kept["settings"]["structure"], kept["settings"]["versions"]
    (path / "run.json").write_text(json.dumps(kept))
    run = fokker.resume(path, target, KERNEL, init=np.zeros(3), draws=9, progress=False)
    assert run.draws.sizes["draw"] == 9
    with pytest.raises(InputError, match="pass the init="):
        fokker.open(path).audit(target=target, kernel=KERNEL)


def test_a_run_without_draws_is_no_sample(tmp_path, monkeypatch):
    def at_once(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fokker.run.loop.Chains.draw", at_once)
    target = fokker.Target.from_log_density(normal)
    fokker.sample(target, KERNEL, init=np.zeros(3), chains=2, **SHORT, store=tmp_path / "run.zarr")
    audit = fokker.open(tmp_path / "run.zarr").audit(target=target, kernel=KERNEL)
    assert audit.verdict == "red" and [f.name for f in audit.findings] == ["effective draws"]
