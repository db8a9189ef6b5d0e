"""Write constraints.txt: what the newest releases resolve to under every Python on this machine.

    .venv/bin/python tools/pin.py [name==version ...]

Names given are held at those versions. Nothing is installed: pip is only asked what it would install. Names,
versions and markers are kept, download addresses are not. Where the Pythons differ, a pin carries a marker; a
Python newer than the newest asked gets that one's pins. Packages that torch pins by itself are left to it.
"""

import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from pythons import interpreters

ROOT = Path(__file__).resolve().parent.parent
HEAD = "# Written by tools/pin.py: what `make setup` installs, for each Python.\n"
PINNED_BY_TORCH = ("nvidia-", "cuda-", "triton")


def resolve(python: str, held: list[str]) -> dict[str, str]:
    """name -> version of everything that the extras test and bench need."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        ask = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        subprocess.run([*ask, "--report", report.name, f"{ROOT}[test,bench]", *held], check=True)
        installed = [item["metadata"] for item in json.load(report)["install"]]
    # A local label such as +cpu names a build, not a release.
    return {m["name"]: m["version"].split("+")[0] for m in installed if not skipped(m["name"])}


def skipped(name: str) -> bool:
    return name == "fokker" or name.lower().startswith(PINNED_BY_TORCH)


def lines(resolved: dict[str, dict[str, str]]) -> list[str]:
    """resolved: Python -> name -> version, oldest Python first."""
    pythons = list(resolved)
    spelling = {name.lower().replace("_", "-"): name for names in resolved.values() for name in names}
    out = []
    for name in (spelling[key] for key in sorted(spelling)):
        versions = [resolved[python].get(name) for python in pythons]
        starts = [0] + [i + 1 for i, (a, b) in enumerate(pairwise(versions)) if a != b] + [len(pythons)]
        for start, end in pairwise(starts):
            if versions[start] is None:
                continue
            bounds = [f"python_version >= '{pythons[start]}'"] if start > 0 else []
            bounds += [f"python_version < '{pythons[end]}'"] if end < len(pythons) else []
            out.append(f"{name}=={versions[start]}" + (f" ; {' and '.join(bounds)}" if bounds else ""))
    return out


if __name__ == "__main__":
    resolved = {number: resolve(path, sys.argv[1:]) for number, path in interpreters().items()}
    text = HEAD + "\n".join(lines(resolved)) + "\n"
    (ROOT / "constraints.txt").write_text(text)
    print(f"constraints.txt: {text.count('==')} pins for Python {', '.join(resolved)}")
