"""List the Pythons of this machine, one per minor version from 3.11 up: `3.12 /path/to/python3.12`.

Looks on PATH, through pyenv where there is one, and at the interpreter that runs this file.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 11
NEWEST = 30  # far enough ahead to need no care


def candidates() -> list[str]:
    names = [f"python3.{minor}" for minor in range(OLDEST, NEWEST)]
    found = [sys.executable]
    for folder in os.get_exec_path():
        found += [str(path) for name in names if (path := Path(folder) / name).is_file()]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        found += [str(path) for path in sorted(Path(root, "versions").glob("3.*/bin/python"))]
    return found


def version(interpreter: str) -> tuple[int, int] | None:
    """Its version; None if it cannot make an environment (no venv, or pyenv's shim of another version)."""
    code = "import sys, venv, ensurepip; print(*sys.version_info[:2])"
    answer = subprocess.run([interpreter, "-I", "-c", code], capture_output=True, text=True)
    if answer.returncode:
        return None
    major, minor = map(int, answer.stdout.split())
    return major, minor


def interpreters() -> dict[str, str]:
    chosen: dict[tuple[int, int], str] = {}
    for interpreter in candidates():
        found = version(interpreter)
        if found and found >= (3, OLDEST):
            chosen.setdefault(found, interpreter)
    return {f"{major}.{minor}": path for (major, minor), path in sorted(chosen.items())}


if __name__ == "__main__":
    for number, path in interpreters().items():
        print(number, path)
