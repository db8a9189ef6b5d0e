"""Rows from disk and from iterators: each at most once an epoch, all equally likely, any iteration alone."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import fokker
from fokker.data import sources
from fokker.data.prefetch import Prefetch
from fokker.data.sources import IteratorSource, array_source, arrow_source, as_source, parquet_source, zarr_source
from fokker.errors import InputError


class Chunked(np.ndarray):
    """An array in memory that says it has chunks, as a Zarr array does; counts what is read."""

    chunks = (5,)
    read = 0

    def __getitem__(self, rows):
        if isinstance(rows, slice):
            Chunked.read += len(range(*rows.indices(len(self))))
        return np.asarray(super().__getitem__(rows))


def numbered(size, chunk=5, pool_rows=10**6):
    """A source whose rows are their own numbers."""
    array = np.arange(size, dtype=np.int64).view(Chunked)
    array.chunks = (chunk,)
    return array_source({"i": array}, pool_bytes=8 * max(pool_rows, chunk))


SHAPES = st.tuples(st.integers(1, 200), st.integers(1, 50), st.integers(1, 60), st.integers(1, 100)).filter(
    lambda s: s[1] <= s[0]
)


@given(shape=SHAPES, seed=st.integers(0, 2**40), epoch=st.integers(0, 9), stream=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_an_epoch_uses_no_row_twice(shape, seed, epoch, stream):
    size, batch_size, chunk, pool = shape
    per_epoch = size // batch_size
    batches = numbered(size, chunk, pool).batches(stream, epoch * per_epoch, per_epoch, batch_size, seed)["i"]
    assert batches.shape == (per_epoch, batch_size)
    assert len(np.unique(batches)) == batches.size and set(batches.ravel()) <= set(range(size))


@given(shape=SHAPES, seed=st.integers(0, 2**40), first=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_any_iteration_can_be_had_alone(shape, seed, first):
    size, batch_size, chunk, pool = shape
    together = numbered(size, chunk, pool).batches(1, first, 9, batch_size, seed)["i"]
    alone = numbered(size, chunk, pool)
    for i in (8, 0, 4):
        np.testing.assert_array_equal(alone.batches(1, first + i, 1, batch_size, seed)["i"][0], together[i])


@pytest.mark.parametrize("iteration", [0, 2, 6, 9])
def test_every_row_is_equally_likely_in_every_batch_whatever_the_pages(iteration):
    """23 rows in pages of 5, 5, 5, 5 and 3, pools of 9 rows that cut pages: no row may be favoured."""
    source = numbered(23, chunk=5, pool_rows=9)
    repeats = 4000
    seen = np.bincount(
        np.concatenate([source.batches(0, iteration, 1, 3, seed)["i"].ravel() for seed in range(repeats)]),
        minlength=23,
    )
    # Without replacement within a batch: the counts have variance p (1 - p) each, with p = 3 / 23.
    p = 3 / 23
    statistic = ((seen - repeats * p) ** 2).sum() / (repeats * p * (1 - p)) * 22 / 23
    assert stats.chi2(22).sf(statistic) > 1e-4


def test_rows_of_a_batch_come_from_several_pages_in_no_order():
    batch = numbered(10_000, chunk=50, pool_rows=1000).batches(0, 0, 1, 100, seed=0)["i"].ravel()
    pages = np.unique(batch // 50)
    assert len(pages) > 15  # of the 20 that make a pool
    assert (np.diff(pages) == 1).mean() < 0.5  # and these are not neighbours
    assert abs(stats.spearmanr(batch, np.arange(100)).statistic) < 4 / 10


def test_streams_epochs_and_seeds_differ():
    source = numbered(1000, chunk=50, pool_rows=200)
    one, other, later, seeded = (
        source.batches(stream, first, 100, 10, seed)["i"]
        for stream, first, seed in [(0, 0, 0), (1, 0, 0), (0, 100, 0), (0, 0, 1)]
    )
    for different in (other, later, seeded):
        assert (one != different).mean() > 0.99


def test_each_row_is_read_about_once_an_epoch():
    source = numbered(1000, chunk=50, pool_rows=200)
    Chunked.read = 0
    for i in range(100):
        source.batches(0, i, 1, 10, 0)
    assert Chunked.read == 1000


def test_full_passes_read_in_order():
    source = numbered(23)
    np.testing.assert_array_equal(source.rows(4, 17)["i"], np.arange(4, 17))
    with pytest.raises(InputError, match="has 23"):
        source.rows(0, 24)


# Formats. The same 200 rows everywhere, in pages of 30.


def table():
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(200, 3)).astype(np.float32),
        "y": rng.integers(0, 2, 200),
    }


def write(kind, folder):
    """The table on disk as ``kind``, and a source for it."""
    data = table()
    if kind == "memmap":
        for name, array in data.items():
            np.save(folder / f"{name}.npy", array)
        return as_source({name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in data})
    if kind == "zarr":
        import zarr

        group = zarr.create_group(folder / "data.zarr")
        for name, array in data.items():
            group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(30, *array.shape[1:]))[:] = array
        return as_source(folder / "data.zarr")
    arrow = pytest.importorskip("pyarrow")
    columns = {f"x{i}": data["x"][:, i] for i in range(3)} | {"y": data["y"]}
    columns["list"] = arrow.FixedSizeListArray.from_arrays(data["x"].ravel(), 3)
    whole = arrow.table(columns)
    picked = {"x": ["x0", "x1", "x2"], "y": "y"}
    if kind == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(whole, folder / "data.parquet", row_group_size=30)
        return parquet_source(folder / "data.parquet", picked)
    if kind == "parquet folder":
        import pyarrow.parquet

        for i in range(2):
            part = whole.slice(100 * i, 100)
            pyarrow.parquet.write_table(part, folder / f"part{i}.parquet", row_group_size=30)
        return parquet_source(folder, {"x": "list", "y": "y"})
    with arrow.OSFile(str(folder / "data.arrow"), "wb") as out, arrow.ipc.new_file(out, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=30)
    return arrow_source(folder / "data.arrow", {"x": "list", "y": "y"} if kind == "arrow lists" else picked)


KINDS = ["memmap", "zarr", "parquet", "parquet folder", "arrow", "arrow lists"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_same_rows(kind, tmp_path):
    source, data = write(kind, tmp_path), table()
    assert source.size == 200 and source.resumable
    assert source.row == {
        "x": jax.ShapeDtypeStruct((3,), np.float32),
        "y": jax.ShapeDtypeStruct((), np.int64),
    }
    for name, want in data.items():
        np.testing.assert_array_equal(source.rows(0, 200)[name], want)
        np.testing.assert_array_equal(source.rows(25, 95)[name], want[25:95])
    batches = source.batches(0, 0, 20, 10, seed=1)
    where = {tuple(row): i for i, row in enumerate(data["x"])}
    rows = [where[tuple(row)] for row in batches["x"].reshape(200, 3)]
    assert sorted(rows) == list(range(200))
    np.testing.assert_array_equal(batches["y"].ravel(), data["y"][rows])


def test_a_table_without_columns_named_is_a_dict_of_all(tmp_path):
    write("parquet", tmp_path)
    source = as_source(str(tmp_path / "data.parquet"))
    assert sorted(source.row) == ["list", "x0", "x1", "x2", "y"] and source.row["list"].shape == (3,)


def test_fingerprints_tell_data_apart(tmp_path):
    def of(change=lambda x: x):
        return array_source(change(table()["x"]).view(Chunked)).fingerprint

    assert of() == of()
    assert len({of(), of(lambda x: x * 2), of(lambda x: x[:-1]), of(lambda x: x[::-1].copy()), of(np.float64)}) == 5
    data = table()
    first = sources.fingerprint(data)
    data["x"][77, 1] += 1e-6
    assert sources.fingerprint(data) != first
    assert sources.fingerprint(data, most_bytes=100) != sources.fingerprint(data)


def test_memory_stays_near_the_pool_for_data_that_is_larger(tmp_path):
    import tracemalloc

    import zarr

    group = zarr.create_group(tmp_path / "big.zarr")
    array = group.create_array("x", shape=(200_000, 32), dtype="f4", chunks=(2000, 32), compressors=None)  # 25 MB
    for first in range(0, 200_000, 20_000):
        array[first : first + 20_000] = np.full((20_000, 32), first, "f4")
    source = zarr_source(tmp_path / "big.zarr", pool_bytes=2 << 20)
    source.batches(0, 0, 1, 100, 0)
    tracemalloc.start()
    for i in range(0, 2000, 20):
        source.batches(0, i, 20, 100, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * (2 << 20)


# Iterators.


def pieces(lengths, size=100):
    """Batches of the numbers 0 .. size - 1, of these lengths in turn."""
    ends = np.cumsum(np.resize(lengths, size))
    ends = np.append(ends[ends < size], size)
    return [{"i": np.arange(a, b)} for a, b in zip(np.append(0, ends), ends, strict=False)]


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), batch_size=st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_batches_of_an_iterator_are_cut_anew_without_losing_a_row(lengths, batch_size):
    source = IteratorSource(pieces(lengths), size=100)
    got = np.concatenate([source.batches(0, i, 3, batch_size, 0)["i"].ravel() for i in range(0, 30, 3)])
    np.testing.assert_array_equal(got, np.arange(30 * batch_size) % 100)


class Countdown:
    """An iterator that can say where it stands."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return np.arange(7.0) + 100 * self.at

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("block", [1, 3])
def test_an_iterator_with_a_state_continues_where_it_stood_even_if_read_ahead(block):
    source = IteratorSource(Countdown())
    assert source.resumable
    whole = np.concatenate([source.batches(0, i, block, 4, 0) for i in range(0, 12, block)])
    for at in range(0, 12, block):
        again = IteratorSource(Countdown())
        again.restore(source.state(at))
        rest = np.concatenate([again.batches(0, i, block, 4, 0) for i in range(at, 12, block)])
        np.testing.assert_array_equal(rest, whole[at:])


class Loader:
    """What can be iterated again, as a DataLoader: counts how often it was."""

    started = 0

    def __iter__(self):
        self.started += 1
        return iter(pieces([7]))


@pytest.mark.parametrize("read", [1, 5, 31])
def test_what_can_be_iterated_again_is_for_every_run_and_begins_anew(read):
    loader = Loader()
    source = IteratorSource(loader, size=100)
    source.row  # noqa: B018  (looks at the first batch, as a plan does)
    first = source.batches(0, 0, 30, 9, 0)["i"]
    assert first[0, 0] == 0 and loader.started == 3  # which is for 270 rows of 100
    for iteration in range(30, 30 + read):
        source.batches(0, iteration, 1, 9, 0)
    with pytest.raises(InputError, match="share_batches"):
        source.batches(1, 0, 1, 9, 0)
    np.testing.assert_array_equal(source.batches(0, 0, 30, 9, 0)["i"], first)
    np.testing.assert_array_equal(source.batches(0, 30, 1, 9, 0)["i"].ravel(), np.arange(270, 279) % 100)


def test_a_run_that_ended_in_the_middle_of_a_block_is_no_beginning():
    source = IteratorSource([{"i": np.arange(10.0)}, {"i": np.full(10, np.nan)}], size=10)
    for _ in range(2):
        with pytest.raises(InputError, match="not finite"):
            source.batches(0, 0, 3, 5, 0)
        np.testing.assert_array_equal(source.batches(0, 0, 2, 5, 0)["i"].ravel(), np.arange(10.0))


def test_an_iterator_with_a_state_is_rewound_for_every_run_and_another_is_refused():
    source = IteratorSource(Countdown())
    first = source.batches(0, 0, 5, 4, 0)
    at_5 = source.state(5)
    source.batches(0, 5, 2, 4, 0)
    np.testing.assert_array_equal(source.batches(0, 0, 5, 4, 0), first)
    assert source.state(5) == at_5
    rest = source.batches(0, 5, 2, 4, 0)
    source.batches(0, 0, 1, 4, 0)  # as a run does that is then resumed
    source.restore(at_5)
    np.testing.assert_array_equal(source.batches(0, 5, 2, 4, 0), rest)

    source = IteratorSource(iter(pieces([10])), size=100)
    source.batches(0, 0, 2, 10, 0)
    with pytest.raises(InputError, match=r"used by an earlier run, up to iteration 2, .*make a new one for every run"):
        source.batches(0, 0, 2, 10, 0)


def test_two_runs_on_one_loader_have_the_same_draws():
    rows = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
    target = fokker.Target(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, batch: -0.5 * jnp.sum((batch - p) ** 2, axis=-1),
        IteratorSource([rows[i : i + 7] for i in range(0, 60, 7)], size=60),
        start=np.zeros(2),
    )
    settings = dict(draws=20, warmup=10, chains=2, batch_size=10, progress=False)
    with pytest.raises(InputError, match="share_batches"):
        fokker.sample(target, fokker.sgld(1e-3), **settings)
    one, two = (fokker.sample(target, fokker.sgld(1e-3), **settings, share_batches=True) for _ in range(2))
    np.testing.assert_array_equal(one.draws["theta"], two.draws["theta"])


def test_what_an_iterator_cannot_do_is_said():
    source = IteratorSource(iter(pieces([10])), size=100)
    assert not source.resumable and source.state(0) == {}
    source.batches(0, 0, 2, 10, 0)
    with pytest.raises(InputError, match="cannot go to iteration 5, it stands at 2"):
        source.batches(0, 5, 1, 10, 0)
    with pytest.raises(InputError, match="share_batches"):
        source.batches(1, 2, 1, 10, 0)
    with pytest.raises(InputError, match="pass over all data"):
        source.rows(0, 1)
    with pytest.raises(InputError, match="cannot be resumed"):
        source.restore({})
    with pytest.raises(InputError, match="ended before iteration 2"):
        source.batches(0, 2, 9, 10, 0)
    with pytest.raises(InputError, match="yields nothing"):
        IteratorSource([]).batches(0, 0, 1, 1, 0)
    with pytest.raises(InputError, match="another structure, shape or dtype"):
        IteratorSource([np.zeros((2, 3)), np.zeros((2, 4))]).batches(0, 0, 2, 2, 0)
    with pytest.raises(InputError, match="must be an iterable"):
        IteratorSource(3)


def test_a_torch_loader_feeds_batches():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(100.0)[:, None], torch.arange(100))
    source = as_source(torch.utils.data.DataLoader(data, batch_size=15))
    assert source.size == 100 and not source.resumable
    x, y = source.batches(0, 0, 10, 10, 0)
    np.testing.assert_array_equal(y.ravel(), np.arange(100))
    np.testing.assert_array_equal(x[..., 0], y.astype(np.float32))


# Prefetching.


def test_prefetched_blocks_come_in_order_and_no_more_than_asked_are_made():
    made = []

    def make(i):
        made.append(i)
        return i * i

    with Prefetch(make, ((i,) for i in range(1000)), depth=3) as blocks:
        iterator = iter(blocks)
        assert [next(iterator) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(made) <= 5 + 3 + 1 and not blocks._thread.is_alive()
    with Prefetch(make, [(2,), (3,)]) as blocks:
        assert list(blocks) == [4, 9]


def test_an_error_in_the_thread_reaches_the_consumer_at_its_place():
    def make(i):
        if i == 3:
            raise InputError("row 3 is bad")
        return i

    with Prefetch(make, ((i,) for i in range(9))) as blocks:
        iterator = iter(blocks)
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(InputError, match="row 3 is bad"):
            next(iterator)
    assert not blocks._thread.is_alive()


def test_an_interrupt_of_the_consumer_ends_the_thread():
    def consume():
        with Prefetch(lambda i: i, ((i,) for i in range(10**9))) as blocks:
            for block in blocks:
                if block == 10:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not [t for t in threading.enumerate() if t.name == "fokker-prefetch"]


# What a user gives.


def test_arrays_in_memory_are_left_to_the_run():
    data = {"x": np.zeros((4, 2), np.float32), "y": [np.zeros(4)]}
    assert as_source(data) is None
    arrays, size = sources.check_in_memory(data)
    assert size == 4 and arrays["x"].shape == (4, 2)
    source = numbered(5)
    assert as_source(source) is source
    assert isinstance(as_source(iter([np.zeros(3)]), size=3), IteratorSource)


@pytest.mark.parametrize(
    "data, message",
    [
        ({"x": np.zeros((4, 2)), "y": np.zeros(5)}, r"leading axes .*\['x'\].*4.*\['y'\].*5"),
        ({"x": np.array([1.0, 2.0, np.nan])}, r"\['x'\] has 1 rows .* the first is row 2"),
        ({"x": np.array([[1.0], [np.inf]])}, "not finite"),
        ({"x": np.array(["a", "b"])}, "encode texts"),
        ({"x": np.zeros((0, 3))}, "no rows"),
        ({"x": [1.0, 2.0]}, "single number"),
        ({}, "empty pytree"),
    ],
)
def test_bad_data_is_refused(data, message):
    with pytest.raises(InputError, match=message):
        sources.check_in_memory(data)


def test_bad_data_on_disk_is_refused_with_its_row():
    rows = np.arange(1000.0)
    rows[[617, 800]] = np.nan
    source = array_source(rows.view(Chunked), pool_bytes=8 * 2000)
    for attempt in (lambda: source.batches(0, 0, 1, 10, 0), lambda: source.rows(500, 700)):
        with pytest.raises(InputError, match=r"row (617|800)"):
            attempt()
    with pytest.raises(InputError, match="batch_size=1001 for 1000 rows"):
        source.batches(0, 0, 1, 1001, 0)
    with pytest.raises(InputError, match="raise pool_bytes"):
        array_source(rows.view(Chunked), pool_bytes=8)


def test_bad_paths_and_columns_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(InputError, match="no known kind"):
        as_source(tmp_path / "a.csv")
    for missing in ("a.zarr", "a.parquet"):
        with pytest.raises(InputError, match="no data at"):
            as_source(tmp_path / missing)
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(arrow.table({"a": [1.0, None], "b": ["x", "y"], "c": [1, None]}), path)
    for columns, message in [("b", "encode"), ("z", "were asked for"), (None, "'b'")]:
        with pytest.raises(InputError, match=message):
            parquet_source(path, columns)
    for column in ("a", "c"):
        with pytest.raises(InputError, match="missing values"):
            parquet_source(path, column).rows(0, 2)
