"""The package as users meet it: what importing costs, what is exported, what a wheel holds."""

import ast
import inspect
import re
import subprocess
import sys
import time
import venv
from importlib import import_module, metadata
from operator import attrgetter
from pathlib import Path
from zipfile import ZipFile

import pytest

import fokker

NAMES = sorted(fokker._EXPORTS)
ERRORS = [f"errors.{name}" for name, value in vars(fokker.errors).items() if inspect.isclass(value)]
INNER = ERRORS + [f"{module}.{name}" for module in fokker._MODULES for name in getattr(fokker, module).__all__]
ROOT = Path(__file__).resolve().parent.parent


def python(*arguments: str | Path, interpreter: str | Path = sys.executable, cwd: Path = ROOT) -> str:
    """Run an interpreter apart from this one; its output, or a failure that shows what it said."""
    done = subprocess.run([interpreter, *arguments], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def fastest_of(repeats: int, code: str) -> float:
    def once() -> float:
        start = time.perf_counter()
        python("-c", code)
        return time.perf_counter() - start

    return min(once() for _ in range(repeats))


def test_import_loads_nothing_heavy():
    loaded = set(python("-c", "import fokker, sys; print(*sys.modules)").split())
    assert "fokker" in loaded
    assert not loaded & {"jax", "jaxlib", "numpy", "scipy", "numba", "xarray", "zarr", "rich", "typer"}


def test_import_costs_under_0_3_seconds_over_python_itself():
    assert fastest_of(5, "import fokker") - fastest_of(5, "pass") < 0.3


@pytest.mark.parametrize("name", NAMES)
def test_export_exists_where_it_is_said_to_be(name):
    home = import_module(fokker._EXPORTS[name])
    value = getattr(fokker, name)
    assert value is getattr(home, name)
    assert value.__module__ == home.__name__


def test_type_checkers_see_the_same_exports():
    tree = ast.parse(Path(fokker.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))  # if TYPE_CHECKING:
    seen = {alias.name: node.module for node in guarded.body for alias in node.names}
    assert seen == fokker._EXPORTS | dict.fromkeys(fokker._MODULES, "fokker")


def test_all_and_dir_list_the_exports():
    assert fokker.__all__ == ["errors", *fokker._MODULES, *NAMES]
    assert set(fokker.__all__) < set(dir(fokker))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'fokker' has no attribute 'nowhere'$"):
        fokker.nowhere  # noqa: B018


def test_version_is_that_of_the_installed_package():
    assert fokker.__version__ == metadata.version("fokker")


@pytest.mark.parametrize("name", NAMES + INNER)
def test_public_name_has_a_docstring_of_its_own(name):
    value = attrgetter(name)(fokker)
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    assert own
    assert len(own.split()) >= 3, f"{name}: {own!r} says too little"


def test_every_public_name_is_on_one_page_of_the_documentation():
    directive = re.compile(r"^```\{public\}\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
    blocks = [block for page in (ROOT / "docs").glob("*.md") for block in directive.findall(page.read_text())]
    shown = [name for block in blocks for name in block.split()]
    assert sorted(shown) == sorted(NAMES + INNER)


# --- the wheel ---


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    python("-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (built,) = folder.glob("*.whl")
    return built


def fresh_environment(folder: Path) -> Path:
    """The interpreter of a new environment that sees no other's packages."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def test_wheel_holds_the_package_alone(wheel):
    names = ZipFile(wheel).namelist()
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/fokker").rglob("*.py")}
    assert sources <= set(names)
    assert "fokker/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"fokker", f"fokker-{fokker.__version__}.dist-info"}


def test_wheel_installs_and_imports(wheel, tmp_path):
    fresh = fresh_environment(tmp_path / "env")
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, interpreter=fresh)
    code = "import fokker; print(fokker.__version__, fokker.__file__)"
    said = python("-c", code, interpreter=fresh, cwd=tmp_path)
    number, place = said.split(maxsplit=1)
    assert number == fokker.__version__
    assert Path(place).is_relative_to(tmp_path)


@pytest.mark.slow
def test_wheel_installs_with_its_dependencies_and_every_export_works(wheel, tmp_path):
    fresh = fresh_environment(tmp_path / "env")
    python("-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, interpreter=fresh)
    code = "import fokker; print(*(n for n in fokker.__all__ if getattr(fokker, n).__doc__))"
    assert python("-c", code, interpreter=fresh, cwd=tmp_path).split() == fokker.__all__
    assert "sample" in python("-m", "fokker", "--help", interpreter=fresh, cwd=tmp_path)
