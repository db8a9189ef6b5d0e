"""The command ``fokker``: demo, sample, resume, audit, report."""

from __future__ import annotations

import hashlib
import re
import runpy
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fokker.errors import FokkerError, InputError, StoreError

app = typer.Typer(
    help="Posterior sampling at minibatch cost, on the space the parameters live on.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

RunPath = Annotated[Path, typer.Argument(help="The folder that a run was stored in.", metavar="RUN")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and its report.")] = Path("demo"),
    quick: Annotated[bool, typer.Option(help="A smaller run, for tests.")] = False,
) -> None:
    """Sample a logistic regression on 100,000 simulated loans and look at it: summary, trace, audit."""
    import fokker
    from fokker import demo as loans

    console.print("[bold]Logistic regression, 100,000 simulated loans, 11 effects, 100 rows a step.[/bold]")
    target = loans.target(10_000 if quick else loans.ROWS)
    out.mkdir(parents=True, exist_ok=True)
    run = fokker.sample(
        target,
        fokker.sghmc(),
        gradient=fokker.control_variates(),
        draws=200 if quick else 2000,
        thin=10 if quick else 20,
        warmup=1000 if quick else 5000,
        sd_error=0.02,
        batch_size=100,
        store=out / "run.zarr",
        overwrite=True,
    )
    truth = [*loans.EFFECTS.values(), loans.INTERCEPT]
    show_summary(run, {"truth": truth})
    show_audit(run)
    page = write_report(run, out / "report.html")
    console.print(f"To look at: [bold]{page}[/bold]   to read again: fokker.open({str(out / 'run.zarr')!r})")


@app.command()
def sample(
    file: Annotated[
        Path,
        typer.Argument(help="Python file that defines `target`, and if it likes `kernel`, `gradient`, `init`."),
    ],
    store: Annotated[Path, typer.Option(help="Folder to stream draws to.")] = Path("run.zarr"),
    draws: Annotated[int, typer.Option(help="Kept draws per chain.")] = 1000,
    warmup: Annotated[Optional[int], typer.Option(help="Iterations before the first draw.")] = None,  # noqa: UP045
    thin: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(help="Iterations a draw; left out, chosen with the step size, or 1."),
    ] = None,
    chains: Annotated[int, typer.Option()] = 4,
    batch_size: Annotated[Optional[int], typer.Option(help="Rows a step.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option()] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or float64")] = "float32",
    overwrite: Annotated[bool, typer.Option(help="Replace a run that is stored there.")] = False,
) -> None:
    """Sample the target that a Python file defines; Ctrl-C keeps what there is, `fokker resume` continues."""
    import fokker

    given = _definitions(file)
    with _in_the_file(file):
        run = fokker.sample(
            given["target"], given.get("kernel"), gradient=given.get("gradient"), init=given.get("init"), draws=draws,
            warmup=warmup, thin=thin, chains=chains, batch_size=batch_size, seed=seed, dtype=dtype, store=store,
            overwrite=overwrite, origin={"path": str(file.resolve()), "sha256": _digest(file)},
        )  # fmt: skip
    show_summary(run)
    show_audit(run)


@app.command()
def resume(run: RunPath, draws: Annotated[int | None, typer.Option(help="Go on to this many draws.")] = None) -> None:
    """Continue a stored run that `fokker sample FILE.py` began."""
    import fokker

    if fokker.open(run).settings["origin"] is None:
        raise InputError(
            f"{run} was not begun by `fokker sample FILE.py`; use fokker.resume(path, target, kernel) in Python."
        )
    given = _given_before(fokker.open(run))
    with _in_the_file(Path(fokker.open(run).settings["origin"]["path"])):
        done = fokker.resume(
            run,
            given["target"],
            given.get("kernel"),
            gradient=given.get("gradient"),
            init=given.get("init"),
            draws=draws,
        )
    show_summary(done)
    show_audit(done)


@app.command()
def audit(
    run: RunPath,
    again: Annotated[bool, typer.Option(help="Measure again, even if the run keeps an audit.")] = False,
) -> None:
    """Which draws of a stored run to trust: its audit, measured now if it was not before."""
    import fokker
    from fokker.run.audit import stored

    opened = fokker.open(run)
    if opened.settings["origin"] is None or (stored(opened) is not None and not again):
        show_audit(opened)
    else:
        given = _given_before(opened)
        show_audit(
            opened,
            target=given["target"],
            kernel=given.get("kernel"),
            gradient=given.get("gradient"),
            init=given.get("init"),
        )


@app.command()
def report(run: RunPath, out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html")) -> None:
    """A self-contained page: summary, traces, audit, settings."""
    import fokker

    console.print(f"[bold]{write_report(fokker.open(run), out)}[/bold]")


SHOWN = {"mean": ".3g", "sd": ".2g", "5%": ".3g", "95%": ".3g", "ess_bulk": ",.0f", "r_hat": ".3f"}
MOST_ROWS = 40


def show_summary(run: Any, extra: dict[str, list[float]] | None = None) -> None:
    """The summary of a run as a table that fits a terminal of 80 columns; ``extra`` columns come first."""
    frame = run.summary()
    formats = {**dict.fromkeys(extra or {}, ".3g"), **SHOWN}
    for name, values in (extra or {}).items():
        frame[name] = values
    table = Table(
        title=Text(repr(run)), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 0, 0, 1)
    )
    table.add_column("", overflow="fold")  # the one that gives way
    for name in formats:
        table.add_column(name, justify="right", no_wrap=True)
    for label, row in frame.head(MOST_ROWS).iterrows():
        table.add_row(Text(str(label)), *(format(row[name], form) for name, form in formats.items()))
    if len(frame) > MOST_ROWS:
        table.caption = f"the first {MOST_ROWS} of {len(frame)} entries; run.summary() has all"
    console.print(table)


def show_audit(run: Any, **again: Any) -> None:
    with console.status("measuring whether to trust the draws"):
        result = run.audit(**again)
    console.print(result)


def write_report(run: Any, path: Path) -> Path:
    from fokker.report.page import write_page

    return write_page(run, path)


def _given_before(run: Any) -> dict[str, Any]:
    """What the file that began a run defines, if it is still the same file."""
    file = Path(run.settings["origin"]["path"])
    if not file.exists() or _digest(file) != run.settings["origin"]["sha256"]:
        raise StoreError(f"{file} is gone or has changed since the run began; put it back, or start a new run.")
    return _definitions(file)


def _definitions(file: Path) -> dict[str, Any]:
    if not file.exists():
        raise InputError(f"there is no file {file}; give a Python file that defines `target`.")
    with _in_the_file(file):
        given = runpy.run_path(str(file))
    if "target" not in given:
        raise InputError(
            f"{file} does not define `target`; add target = fokker.Target(log_prior, log_likelihood, data)."
        )
    return given


class FileError(FokkerError):
    """Something that the user's own file raised."""


@contextmanager
def _in_the_file(file: Path) -> Iterator[None]:
    """What goes wrong in the user's file is said with its own line; the package's own lines tell a user nothing."""
    try:
        yield
    except Exception as error:
        line = _line_of(file, error)
        if line is None:
            raise
        raise FileError(f"{line}\n{type(error).__name__}: {error}") from error


def _line_of(file: Path, error: BaseException) -> str | None:
    """The last line of the file that led to an error, or to its cause; None if none did."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, SyntaxError) and at.filename == str(file):
            return f"{file}, line {at.lineno}: {(at.text or '').strip()}"
        for frame in reversed(traceback.extract_tb(at.__traceback__)):
            if frame.filename == str(file):
                return f"{file}, line {frame.lineno}: {frame.line}"
        at = at.__cause__
    return None


OPTIONS = ("draws", "warmup", "thin", "chains", "batch_size", "seed", "dtype", "store")


def _in_words_of_the_command(message: str) -> str:
    """Arguments of Python as options of the command: ``overwrite=True`` is ``--overwrite``."""
    message = message.replace("overwrite=True", "--overwrite")

    def option(found: re.Match[str]) -> str:
        return f"--{found[1].replace('_', '-')} {found[2]}".rstrip()

    return re.sub(rf"\b({'|'.join(OPTIONS)})=('?[\w,]*\w'?|)", option, message)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    """The entry point: errors of the boundary are shown as a sentence, not as a traceback."""
    try:
        app()
    except FokkerError as error:
        of_the_file = isinstance(error, FileError)
        name = "" if of_the_file else f"{type(error).__name__}: "
        say = Text.assemble((name, "red"), _in_words_of_the_command(str(error)))
        Console(stderr=True).print(say, soft_wrap=True)
        raise SystemExit(1 if of_the_file else 2) from None


if __name__ == "__main__":
    main()
