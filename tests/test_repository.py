"""What must not be in the repository, looked for in every file that git knows."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EVERYWHERE = re.compile("")
CODE = re.compile(r"\.py$")
SOURCES = re.compile(r"^src/.*\.py$")

# what -> (which files, pattern)
FORBIDDEN = {
    "absolute path of one machine": (EVERYWHERE, r"(?<![\w.])/(home|root|work|opt|Users|mnt)/\w"),
    "host of a package registry": (EVERYWHERE, r"\b(pypi|pythonhosted|pytorch|anaconda)\.(org|com)\b"),
    "unfinished work": (EVERYWHERE, r"\b(TODO|FIXME|XXX|NotImplementedError)\b"),
    "global setting of JAX": (CODE, r"jax\.config\.update\(|jax_enable_x64"),
    "global random numbers": (CODE, r"\bnp\.random\.(seed|rand|randn|normal|uniform|choice)\("),
    "global logging": (SOURCES, r"logging\.(basicConfig|getLogger\(\))"),
    "code that can be loaded from a file": (
        CODE,
        r"\b(import|from) .*pickle\b|\bpickle\.|allow_pickle\s*=\s*True|\b(joblib|yaml)\.load\(",
    ),
    "swallowed error": (CODE, r"except( Exception| BaseException)?:\s*(pass|\.\.\.)\b"),
}


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the list of files is git's")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    here = str(Path(__file__).relative_to(ROOT))  # this file names what it looks for
    names = [name for name in listed.stdout.split("\0") if name and name != here and (ROOT / name).is_file()]
    contents = {name: (ROOT / name).read_bytes() for name in names}
    return {name: raw.decode(errors="replace") for name, raw in contents.items() if b"\0" not in raw}  # pictures aside


@pytest.mark.parametrize("what", FORBIDDEN)
def test_repository_is_free_of(what, files):
    which, pattern = FORBIDDEN[what]
    found = [
        f"{name}:{text[: hit.start()].count(chr(10)) + 1}: {hit.group()!r}"
        for name, text in files.items()
        if which.search(name)
        for hit in re.finditer(pattern, text)
    ]
    assert not found, "\n".join([what, *found])


def test_pins_are_names_versions_and_markers():
    pin = re.compile(r"^[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*( ; python_version [<>=]+ '3\.\d+'( and .*)?)?$")
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if not pin.match(line)] == []
