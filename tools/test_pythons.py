"""Run the quick suite under every other Python of this machine; what follows the command goes to pytest.

    .venv/bin/python tools/test_pythons.py --numprocesses 2 --dist loadfile

Each has an environment of its own, .venvs/3.12 and so on, with the package and the extra `test`.
"""

import subprocess
import sys
from pathlib import Path

from pythons import interpreters

ROOT = Path(__file__).resolve().parent.parent


def suite_passes(number: str, interpreter: str, arguments: list[str]) -> bool:
    own = ROOT / ".venvs" / number
    python = own / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", own], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt"]
    subprocess.run([*install, "--editable", ".[test]"], check=True, cwd=ROOT)
    return subprocess.run([python, "-m", "pytest", *arguments], cwd=ROOT).returncode == 0


if __name__ == "__main__":
    here = "{}.{}".format(*sys.version_info)
    others = {number: path for number, path in interpreters().items() if number != here}
    print(f"other Pythons on this machine: {', '.join(others) or 'none found'}", flush=True)
    failed = [number for number, path in others.items() if not suite_passes(number, path, sys.argv[1:])]
    if failed:
        sys.exit(f"the suite failed under Python {', '.join(failed)}")
