"""The command ``fokker``: demo, sample, resume, audit, report."""

from __future__ import annotations

import hashlib
import runpy
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
    thin: Annotated[int, typer.Option(help="Iterations a draw.")] = 1,
    chains: Annotated[int, typer.Option()] = 4,
    batch_size: Annotated[Optional[int], typer.Option(help="Rows a step.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option()] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or float64")] = "float32",
    overwrite: Annotated[bool, typer.Option(help="Replace a run that is stored there.")] = False,
) -> None:
    """Sample the target that a Python file defines; Ctrl-C keeps what there is, `fokker resume` continues."""
    import fokker

    given = _definitions(file)
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
    given = runpy.run_path(str(file))
    if "target" not in given:
        raise InputError(
            f"{file} does not define `target`; add target = fokker.Target(log_prior, log_likelihood, data)."
        )
    return given


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    """The entry point: errors of the boundary are shown as a sentence, not as a traceback."""
    try:
        app()
    except FokkerError as error:
        Console(stderr=True).print(f"[red]{type(error).__name__}:[/red] {error}")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
