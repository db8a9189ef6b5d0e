"""Runs every figure and writes the page of claims: python -m experiments [--quick] [--page] [FOLDER ...]

A figure is a file experiments/FOLDER/NAME.py with a ``main(quick, out)``. Full results are kept in experiments/*/out
and shown on docs/experiments.md; quick ones go to build/, and the page stays as it is. Ends with an error if what was
measured cannot decide a claim (``sound``); a claim that does not hold is a finding and no error.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from importlib import import_module
from pathlib import Path

from experiments import page, report

HERE = Path(__file__).resolve().parent


def figures(folders: list[str]) -> list[str]:
    """Names of the modules below experiments/ that have a ``main(quick, out)``, found by reading them."""
    files = sorted(p for p in HERE.glob("*/*.py") if not folders or p.parent.name in folders)
    return [f"experiments.{p.parent.name}.{p.stem}" for p in files if is_figure(ast.parse(p.read_text("utf-8")))]


def is_figure(module: ast.Module) -> bool:
    functions = {n.name: [a.arg for a in n.args.args] for n in module.body if isinstance(n, ast.FunctionDef)}
    return functions.get("main") == ["quick", "out"]


def run(modules: list[str], quick: bool) -> list[str]:
    """Runs them; returns the claims that were not measured soundly."""
    unsound = []
    for name in modules:
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        found = import_module(name).main(quick)
        report.show(found)
        print(f"   {time.perf_counter() - start:.0f} s", flush=True)
        unsound += [f"{found['figure']}: {c['claim']}" for c in found["claims"] if not c["sound"]]
    return unsound


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", help="of experiments/; all if none is named")
    parser.add_argument("--quick", action="store_true", help="a small version of each, to see that it runs")
    parser.add_argument("--page", action="store_true", help="only write the page, from the results on record")
    options = parser.parse_args()
    unsound = [] if options.page else run(figures(options.folders), options.quick)
    if not options.quick:
        page.write()
        print(f"wrote {page.PAGE.relative_to(HERE.parent)}")
    for claim in unsound:
        print(f"not sound: {claim}", file=sys.stderr)
    return 1 if unsound else 0


if __name__ == "__main__":
    sys.exit(main())
