"""What the store holds is what was handed in, up to the last commit, whatever happened to the writer."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

from fokker.errors import InputError, StoreError
from fokker.run import chunks, files
from fokker.run.arviz import to_arviz
from fokker.run.store import Store, Variable
from tests.disk import Changes

VARIABLES = (
    Variable("theta", (3,), ("feature",), {"feature": ["age", "größe", "x"]}),
    Variable("scale", dtype="float64"),
    Variable("count", (2, 2), ("row", "column"), {"row": [10, 20]}, "int32"),
)
STATS = {"energy": "float32", "accepted": bool}
CHAINS = 2


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Forcing files to the device takes most of the time here and can be seen only when the power fails."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def draws(first, count, variables=VARIABLES, stats=STATS, chains=CHAINS):
    """Draws first .. first + count - 1: numbers that depend on the draw alone, so every row has one truth."""

    def numbers(name, shape, dtype):
        rows = [
            np.random.default_rng([zlib.crc32(name.encode()), i]).integers(1, 100, (chains, 1, *shape))
            for i in range(first, first + count)
        ]
        return np.concatenate(rows, axis=1).astype(dtype) if rows else np.zeros((chains, 0, *shape), dtype)

    values = {v.name: numbers(v.name, v.shape, v.dtype) for v in variables}
    return values, {name: numbers(name, (), dtype) for name, dtype in stats.items()}


def state(iteration):
    return [np.full((CHAINS, 3), iteration, np.float32), np.array(iteration)]


def create(path, *, draws=10, chunk=4, **more):
    return Store.create(path, VARIABLES, STATS, chains=CHAINS, draws=draws, settings={}, chunk=chunk, **more)


def append(store, first, count, **more):
    store.append(*draws(first, count), state(first + count), first + count, **more)


def assert_holds(store, count, variables=VARIABLES, stats=STATS, chains=CHAINS):
    values, numbers = draws(0, count, variables, stats, chains)
    posterior, sample_stats = store.posterior(), store.sample_stats()
    for name, want in values.items():
        np.testing.assert_array_equal(posterior[name].values, want, strict=True)
    for name, want in numbers.items():
        np.testing.assert_array_equal(sample_stats[name].values, want, strict=True)


# What is written is what is read.


@given(
    shapes=st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int64", "uint8", "bool"]),
    chunk=st.integers(1, 9),
    steps=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    reopen=st.integers(0, 5),
    chains=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_draws_do_not_depend_on_chunks_appends_or_interruptions(
    tmp_path_factory, shapes, dtype, chunk, steps, reopen, chains
):
    path = tmp_path_factory.mktemp("run") / "run.zarr"
    variables = tuple(
        Variable(f"v{i}", shape, tuple(f"v{i}_{j}" for j in range(len(shape))), dtype=dtype)
        for i, shape in enumerate(shapes)
    )
    total = max(1, sum(steps))
    store = Store.create(path, variables, STATS, chains=chains, draws=total, settings={}, chunk=chunk)
    done = 0
    for i, k in enumerate(steps):
        store.append(*draws(done, k, variables, chains=chains), [np.array(done + k)], done + k)
        done += k
        if i == reopen:
            store.close()
            store = Store.open(path, write=True)
    store.close()
    store = Store.open(path)
    store.verify()
    assert store.committed == done and int(store.checkpoint().state[0]) == done
    assert_holds(store, done, variables, chains=chains)


def test_settings_and_audit_come_back(tmp_path):
    store = create(tmp_path / "run.zarr")
    store.update_settings(step_size=np.float32(0.5), why={"chosen": [1, 2]})
    store.write_audit({"share": np.arange(2.0)})
    store.close()
    again = Store.open(tmp_path / "run.zarr")
    assert again.settings == {"step_size": 0.5, "why": {"chosen": [1, 2]}}
    assert again.audit() == {"share": [0.0, 1.0]}


def test_appends_that_end_where_chunks_do_leave_nothing_uncommitted(tmp_path):
    with create(tmp_path / "run.zarr") as store:
        seen = []
        while k := store.until_chunk_end():
            append(store, sum(seen), k)
            seen.append(k)
            assert store.committed == sum(seen)
        assert seen == [4, 4, 2] and store.complete


def test_a_slow_run_commits_every_few_seconds(tmp_path, monkeypatch):
    with create(tmp_path / "run.zarr") as store:
        append(store, 0, 1)
        assert store.committed == 0
        monkeypatch.setattr("fokker.run.store.COMMIT_SECONDS", 0.0)
        append(store, 1, 1)
        assert store.committed == 2


def test_the_state_handed_in_may_be_reused(tmp_path):
    with create(tmp_path / "run.zarr") as store:
        leaf = np.zeros(3)
        store.append(*draws(0, 2), [leaf], 2)
        leaf += 1
        store.flush()
        assert (store.checkpoint().state[0] == 0).all()


def test_warmup_draws_and_extra_are_committed_too(tmp_path):
    store = create(tmp_path / "run.zarr", warmup=5)
    append(store, 0, 3, warmup=True, extra={"at": [1, 2]})
    store.close()
    store = Store.open(tmp_path / "run.zarr", write=True)
    checkpoint = store.checkpoint()
    assert (checkpoint.draws, checkpoint.warmup, checkpoint.extra) == (0, 3, {"at": [1, 2]})
    append(store, 3, 2, warmup=True)
    append(store, 0, 10)
    store.close()
    groups = Store.open(tmp_path / "run.zarr").groups()
    np.testing.assert_array_equal(groups["warmup_posterior"]["theta"].values, draws(0, 5)[0]["theta"])
    np.testing.assert_array_equal(groups["posterior"]["theta"].values, draws(0, 10)[0]["theta"])


@pytest.mark.parametrize("ends", [8, 10])
@pytest.mark.parametrize("reopened", [True, False])
def test_a_run_can_be_given_more_draws(tmp_path, monkeypatch, ends, reopened):
    monkeypatch.setattr(chunks, "DRAW_NUMBERS", 12)
    path = tmp_path / "run.zarr"
    store = create(path, draws=ends)
    append(store, 0, ends)
    if reopened:
        store.close()
        store = Store.open(path, write=True)
    store.extend(30)
    append(store, ends, 30 - ends)
    store.close()
    store = Store.open(path)
    store.verify()
    assert store.complete
    assert_holds(store, 30)
    np.testing.assert_array_equal(store.posterior()["draw"].values, np.arange(30))


def test_a_foreign_reader_sees_nan_until_the_run_closes(tmp_path):
    path = tmp_path / "run.zarr"
    store = create(path)
    append(store, 0, 4)
    append(store, 4, 2)
    with xarray.open_datatree(path, engine="zarr") as tree:
        assert set(tree.children) == {"posterior", "sample_stats"}
        theta = tree["posterior"]["theta"].values
    assert theta.shape == (CHAINS, 10, 3) and np.isnan(theta[:, 4:]).all()
    np.testing.assert_array_equal(theta[:, :4], draws(0, 4)[0]["theta"])
    store.flush()
    with xarray.open_datatree(path, engine="zarr") as tree:
        theta = tree["posterior"]["theta"].values
    np.testing.assert_array_equal(theta[:, :6], draws(0, 6)[0]["theta"])
    assert np.isnan(theta[:, 6:]).all()
    store.close()
    with xarray.open_datatree(path, engine="zarr") as tree:
        for name, want in draws(0, 6)[0].items():
            np.testing.assert_array_equal(tree["posterior"][name].values, want)
        assert list(tree["posterior"]["feature"].values) == ["age", "größe", "x"]
        assert list(tree["posterior"]["row"].values) == [10, 20]
        assert list(tree["posterior"]["draw"].values) == list(range(6))


@pytest.mark.filterwarnings("ignore")  # of packages that ArviZ loads
def test_arviz_reads_it(tmp_path):
    arviz = pytest.importorskip("arviz")
    path = tmp_path / "run.zarr"
    with create(path) as store:
        append(store, 0, 10)
        again = to_arviz(store)
    data = [again, to_arviz(Store.open(path).groups())]
    if int(arviz.__version__.split(".")[0]) >= 1:
        data.append(arviz.from_zarr(path))
    for one in data:
        np.testing.assert_array_equal(one["posterior"]["theta"].values, draws(0, 10)[0]["theta"])
        summary = arviz.summary(one, var_names=["scale"], round_to="none")
        assert float(summary["mean"].iloc[0]) == pytest.approx(draws(0, 10)[0]["scale"].mean())


# A killed writer.

WRITER = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[2])
from test_store import *
store = Store.open(sys.argv[1], write=True)
done = store.committed
while done < store.draws:
    k = min(int(np.random.default_rng(done).integers(1, 5)), store.draws - done)
    append(store, done, k)
    done += k
    print(done, flush=True)
    if done % 7 == 0:
        store.flush()
store.close()
"""


def kill_and_reopen(path, kills):
    """SIGKILL a writer again and again, and look at what it left each time; returns the committed lengths."""
    create(path, draws=100_000, chunk=6).close()
    rng = np.random.default_rng(0)
    lengths = []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for _ in range(kills):
        command = [sys.executable, "-c", WRITER, str(path), os.path.dirname(__file__)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        with writer:
            for _ in range(rng.integers(7, 20)):  # more draws than a chunk has
                assert int(writer.stdout.readline()) > 0
            time.sleep(rng.uniform(0, 0.005))
            writer.send_signal(signal.SIGKILL)
        store = Store.open(path)
        store.verify()
        assert_holds(store, store.committed)
        checkpoint = store.checkpoint()
        assert checkpoint.iteration == checkpoint.draws == store.committed
        for leaf, want in zip(checkpoint.state, state(store.committed), strict=False):
            np.testing.assert_array_equal(leaf, want)
        lengths.append(store.committed)
    return lengths


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_writer_leaves_a_consistent_prefix(tmp_path):
    lengths = kill_and_reopen(tmp_path / "run.zarr", kills=4)
    assert lengths == sorted(lengths) and len(set(lengths)) == 4


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_writer_leaves_a_consistent_prefix_at_twenty_instants(tmp_path):
    lengths = kill_and_reopen(tmp_path / "run.zarr", kills=20)
    assert lengths == sorted(lengths) and len(set(lengths)) == 20


def test_death_before_any_single_change_of_the_disk_loses_at_most_the_chunk_in_hand(tmp_path, monkeypatch):
    """Every system call that changes the disk, in turn, is the one before which the writer dies."""

    class Death(BaseException):
        pass

    def run(path, die_at):
        """Appends of 3 draws in chunks of 4, dying before change number die_at; (appended, changes seen)."""
        appended, changes = 0, Changes(die_at, Death(), for_good=True)  # nothing is tidied up after it either
        store = create(path)
        with monkeypatch.context() as patched:
            changes.patch(patched)
            try:
                while appended < 9:
                    append(store, appended, 3)
                    appended += 3
                store.close()
            except Death:
                pass
        store._release()  # as the system does when a process ends
        return appended, changes.seen

    _, changes = run(tmp_path / "whole.zarr", -1)
    assert changes > 30
    for die_at in range(1, changes + 1):
        path = tmp_path / f"{die_at}.zarr"
        appended, _ = run(path, die_at)
        store = Store.open(path, write=True)
        assert appended - 4 <= store.committed <= appended + 3
        assert store.checkpoint().iteration == store.committed
        assert_holds(store, store.committed)
        append(store, store.committed, 10 - store.committed)
        store.close()
        assert_holds(Store.open(path), 10)


# An interrupted writer (KeyboardInterrupt), which closes the store; of whole runs: test_interrupts.py.


def write_and_close(path, appended):
    """Appends of 3 draws in chunks of 4, so that they begin, end and cross chunks; counts those that returned."""
    store = create(path)
    try:
        while appended[0] < 9:
            append(store, appended[0], 3, extra={"at": appended[0] + 3})
            appended[0] += 3
    except KeyboardInterrupt:
        appended.append("interrupted")
    try:
        store.close()
    finally:
        store._release()


def assert_continues(path, appended):
    """Whatever the interrupt found, draws, state, iteration and extra belong together; the rest can be appended."""
    store = Store.open(path)
    store.verify()
    assert_holds(store, store.committed)
    assert store.committed >= appended[0] - (0 if len(appended) > 1 else 4)  # close() commits, if it may
    store = Store.open(path, write=True)
    checkpoint = store.checkpoint()
    assert checkpoint.iteration == checkpoint.draws == store.committed == checkpoint.extra.get("at", 0)
    for leaf, want in zip(checkpoint.state, state(store.committed), strict=False):
        np.testing.assert_array_equal(leaf, want)
    append(store, store.committed, 10 - store.committed)
    store.close()
    store = Store.open(path)
    store.verify()
    assert_holds(store, 10)
    assert not list(path.rglob("*.partial"))


def interrupted(run, monkeypatch, at):
    """run() with a KeyboardInterrupt instead of change number ``at`` of the disk; the changes seen."""
    changes = Changes(at, KeyboardInterrupt())
    with monkeypatch.context() as patched:
        changes.patch(patched)
        with contextlib.suppress(KeyboardInterrupt):
            run()
    return changes.seen


@pytest.mark.parametrize("durable", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_single_change_of_the_disk_leaves_draws_and_state_together(tmp_path, monkeypatch, durable):
    monkeypatch.setattr(Store, "_sync_is_due", lambda *_: durable)
    whole = interrupted(lambda: write_and_close(tmp_path / "whole", [0]), monkeypatch, at=-1)
    created = interrupted(lambda: create(tmp_path / "empty"), monkeypatch, at=-1)
    assert whole - created > 30
    for at in range(created + 1, whole + 1):
        path, appended = tmp_path / f"{at}.zarr", [0]
        interrupted(lambda path=path, appended=appended: write_and_close(path, appended), monkeypatch, at)
        assert_continues(path, appended)
        if durable:  # what the last forced commit needs is still there
            Store.open(path, recover=True)


@pytest.mark.parametrize("every", [61, pytest.param(3, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_line_leaves_draws_and_state_together(tmp_path, every):
    """As a signal may come: between any two lines of the store's code, of an append and of close()."""
    ours = {module.__file__ for module in (files, chunks, sys.modules[Store.__module__])}

    def traced(run, at):
        seen = 0

        def trace(frame, event, _):
            nonlocal seen
            if frame.f_code.co_filename not in ours:
                return None
            seen += event == "line"
            if event == "line" and seen == at:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            run()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        return seen

    created = traced(lambda: create(tmp_path / "empty"), -1)
    whole = traced(lambda: write_and_close(tmp_path / "whole", [0]), -1)
    assert whole - created > 500
    for at in range(created + 10, whole, every):
        path, appended = tmp_path / f"{at}.zarr", [0]
        traced(lambda path=path, appended=appended: write_and_close(path, appended), at)
        assert_continues(path, appended)


def test_an_interrupt_while_a_store_is_made_leaves_a_path_that_can_be_used(tmp_path, monkeypatch):
    changes = interrupted(lambda: create(tmp_path / "whole"), monkeypatch, at=-1)
    for at in range(1, changes + 1, 3):
        path = tmp_path / f"{at}.zarr"
        interrupted(lambda path=path: create(path), monkeypatch, at)
        with create(path, overwrite=True) as store:
            append(store, 0, 10)
        assert_holds(Store.open(path), 10)


def test_draws_of_an_interrupted_append_can_be_handed_in_again(tmp_path, monkeypatch):
    """Without closing: rows of several chunks that were put and do not count are overwritten, in memory and on disk."""
    store = create(tmp_path / "run.zarr", draws=20)
    append(store, 0, 3)
    wrong = {name: np.ones_like(x) for name, x in draws(0, 14)[0].items()}
    written = []
    write = chunks.Draws.write

    def third(self, *length):
        written.append(length)
        if len(written) == 3:
            raise KeyboardInterrupt
        return write(self, *length)

    monkeypatch.setattr(chunks.Draws, "write", third)
    with pytest.raises(KeyboardInterrupt):
        store.append(wrong, draws(0, 14)[1], state(17), 17)
    assert store.until_chunk_end() == 1
    append(store, 3, 2)
    store.close()
    store = Store.open(tmp_path / "run.zarr")
    store.verify()
    assert store.checkpoint().iteration == store.committed == 5
    assert_holds(store, 5)


def test_a_failed_run_is_remembered_until_it_goes_on(tmp_path):
    path = tmp_path / "run.zarr"
    store = create(path)
    append(store, 0, 3)
    store.close(failed=True)
    assert Store.open(path).failed and Store.open(path).committed == 3
    Store.open(path, write=True).close()
    assert Store.open(path).failed  # nothing was added
    with Store.open(path, write=True) as store:
        append(store, 3, 1)
    assert not Store.open(path).failed


# What is refused, and how.


def test_a_run_is_replaced_only_when_asked(tmp_path):
    path = tmp_path / "run.zarr"
    create(path).close()
    with pytest.raises(StoreError, match="overwrite=True"):
        create(path)
    with create(path, draws=3, overwrite=True) as store:
        append(store, 0, 3)
    assert_holds(Store.open(path), 3)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("what", ["file", "folder", "zarr", "other run.json"])
def test_what_is_not_a_store_is_never_touched(tmp_path, what, overwrite):
    path = tmp_path / "precious"
    if what == "file":
        path.write_text("thesis")
    else:
        path.mkdir()
        (path / {"folder": "a.txt", "zarr": "zarr.json", "other run.json": "run.json"}[what]).write_text("{}")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="choose another path"):
        create(path, overwrite=overwrite)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    with pytest.raises(StoreError, match="not a store"):
        Store.open(path)


def test_a_store_that_holds_a_foreign_file_is_not_deleted(tmp_path):
    path = tmp_path / "run.zarr"
    with create(path) as store:
        append(store, 0, 4)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"notes\.txt"):
        create(path, overwrite=True)
    assert_holds(Store.open(path), 4)


def test_one_writer_at_a_time(tmp_path):
    path = tmp_path / "run.zarr"
    store = create(path)
    for second in (lambda: Store.open(path, write=True), lambda: create(path, overwrite=True)):
        with pytest.raises(StoreError, match="being written"):
            second()
    store.close()
    Store.open(path, write=True).close()


def test_a_reader_cannot_append(tmp_path):
    create(tmp_path / "run.zarr").close()
    with pytest.raises(StoreError, match="for reading only"):
        append(Store.open(tmp_path / "run.zarr"), 0, 1)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda p: (p / "posterior/theta/c.0.0.0").unlink(), "truncated.*missing"),
        (lambda p: os.truncate(p / "posterior/theta/c.0.1.0", 10), "truncated.*has 10 bytes"),
        (lambda p: (p / "run.json").unlink(), "run.json is missing.*truncated"),
        (lambda p: (p / "run.json").write_text("{"), "damaged"),
        (lambda p: (p / "checkpoint/commit.json").unlink(), "commit.json is missing"),
        (lambda p: (p / "checkpoint/commit.json").write_text("{}"), "commit.json is damaged"),
        (lambda p: [f.unlink() for f in (p / "checkpoint").glob("state-*")], "truncated.*state"),
        (lambda p: [f.write_bytes(b"x") for f in (p / "checkpoint").glob("state-*")], "state-.*is damaged"),
    ],
)
def test_a_truncated_store_is_refused(tmp_path, damage, message):
    path = tmp_path / "run.zarr"
    with create(path) as store:
        append(store, 0, 10)
    (path / "checkpoint/synced.json").unlink()
    damage(path)
    with pytest.raises(StoreError, match=message):
        Store.open(path, write=True)


def test_a_damaged_chunk_is_noticed(tmp_path):
    path = tmp_path / "run.zarr"
    with create(path) as store:
        append(store, 0, 10)
    file = path / "posterior/theta/c.0.1.0"
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    store = Store.open(path)
    with pytest.raises(StoreError, match="Draws 4 to 7 are not to be trusted"):
        store.verify()
    with pytest.raises(ValueError, match="checksum"):
        store.posterior()["theta"].load()


def test_a_commit_lost_with_the_power_can_be_stepped_over(tmp_path, monkeypatch):
    """What may happen to files that were not forced to the device: the names are there, the bytes not."""
    path = tmp_path / "run.zarr"
    store = create(path)
    monkeypatch.setattr(Store, "_sync_is_due", lambda *_: True)
    append(store, 0, 6)  # a full chunk and a part, forced to the device
    monkeypatch.setattr(Store, "_sync_is_due", lambda *_: False)
    append(store, 6, 4)
    store._release()
    commit = json.loads((path / "checkpoint/commit.json").read_text())
    (path / "checkpoint" / commit["state"]["file"]).write_bytes(b"")
    os.truncate(path / "posterior/theta/c.0.2.0", 0)
    with pytest.raises(StoreError, match=r"older commit of 6 draws is whole: recover=True"):
        Store.open(path, write=True)
    store = Store.open(path, write=True, recover=True)
    assert store.committed == 6 == store.checkpoint().iteration
    append(store, 6, 4)
    store.close()
    assert_holds(Store.open(path), 10)


def test_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "run.zarr"
    create(path).close()
    description = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(description | {"format_version": 99}))
    with pytest.raises(StoreError, match="format version 99"):
        Store.open(path)
    with pytest.raises(StoreError, match="overwrite=True"):
        create(path)


def test_a_full_disk_is_one_clear_error_and_what_was_committed_stays(tmp_path, monkeypatch):
    path = tmp_path / "run.zarr"
    store = create(path)
    append(store, 0, 4)

    def full(out, piece):
        out.write(memoryview(piece).cast("B")[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(files, "_write_whole", full)
        with pytest.raises(StoreError, match=r"theta.*No space left.*100 bytes.*4 of 10 draws are committed"):
            append(store, 4, 4)
    with pytest.raises(StoreError, match=r"earlier write .* failed"):
        append(store, 8, 2)
    store.close()
    assert not list(path.rglob("*.partial"))
    store = Store.open(path, write=True)
    assert store.committed == 4
    append(store, 4, 6)
    store.close()
    assert_holds(Store.open(path), 10)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a file limit of the system")
def test_a_limit_of_the_system_is_one_clear_error(tmp_path):
    """RLIMIT_FSIZE makes real writes fail half-way, as a full disk does."""
    code = """
import resource, signal, sys
sys.path.insert(0, sys.argv[2])
from test_store import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = create(sys.argv[1], draws=2000, chunk=1000)
append(store, 0, 10)
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
try:
    append(store, 10, 990)
except StoreError as error:
    print(error)
"""
    path = tmp_path / "run.zarr"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", code, str(path), os.path.dirname(__file__)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "theta" in done.stdout and "10 of 2000 draws are committed" in done.stdout
    assert_holds(Store.open(path), 10)


@pytest.mark.parametrize(
    "variables, message",
    [
        ((Variable("a/b"),), "without slashes"),
        ((Variable("draw"),), "other than chain and draw"),
        ((Variable("a"), Variable("a")), "must differ"),
        ((Variable("a", (2,)),), "one name for each axis"),
        ((Variable("a", (0,), ("i",)),), "each of 1 or more"),
        ((Variable("a", (2,), ("i",)), Variable("b", (3,), ("i",))), "taken"),
        ((Variable("a", (2,), ("i",), {"i": [1]}),), "1 labels for 'i'"),
        ((Variable("a", dtype="complex64"),), "floats, integers and bool"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(tmp_path, variables, message):
    with pytest.raises(InputError, match=message):
        Store.create(tmp_path / "run.zarr", variables, {}, chains=1, draws=1, settings={})
    assert not (tmp_path / "run.zarr").exists()


def test_appends_that_do_not_fit_are_refused(tmp_path):
    values, stats = draws(0, 11)
    with create(tmp_path / "run.zarr") as store:
        with pytest.raises(InputError, match="11 more do not fit"):
            store.append(values, stats, [], 0)
        with pytest.raises(InputError, match="posterior needs"):
            store.append({"theta": values["theta"]}, stats, [], 0)
        with pytest.raises(InputError, match="scale must be float64"):
            store.append(values | {"scale": values["scale"].astype("f4")}, stats, [], 0)
        with pytest.raises(InputError, match="settings"):
            store.update_settings(kernel=object())
        with pytest.raises(InputError, match="checkpoint holds numbers"):
            store.append(*draws(0, 1), [np.array(["a"])], 1)
        with pytest.raises(InputError, match="extra"):
            store.append(*draws(0, 4), state(4), 4, extra={"at": object()})
        assert store.committed == 0 and store.until_chunk_end() == 4


@pytest.mark.slow
def test_memory_is_flat_over_a_million_draws(tmp_path):
    import psutil

    variables = (Variable("theta", (10,), ("theta_dim_0",)),)
    total = 1_000_000
    process, resident = psutil.Process(), []
    with Store.create(tmp_path / "r", variables, {"lp": "f4"}, chains=4, draws=total, settings={}) as store:
        block = np.random.default_rng(0).normal(size=(4, store.chunk, 10)).astype("f4")
        done = 0
        while k := store.until_chunk_end():
            store.append({"theta": block[:, :k]}, {"lp": block[:, :k, 0]}, [block[:, 0]], done)
            done += k
            resident.append(process.memory_info().rss)
    assert Store.open(tmp_path / "r").committed == total
    assert max(resident) - resident[0] < 50e6
