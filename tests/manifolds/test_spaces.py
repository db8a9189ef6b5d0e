"""The table of spaces names tests that exist, leaves out no space and no law, and is the page that people read."""

import ast
import importlib.util
from pathlib import Path

import pytest

import fokker
from fokker.manifolds.manifold import Embedded, Manifold, Mapped
from tests.spaces import LAWS, SPACES

TESTS = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", LAWS)
def test_the_evidence_exists(name):
    for test in LAWS[name][1]:
        file, function = test.split("::")
        tree = ast.parse((TESTS / file).read_text())
        assert function in [n.name for n in tree.body if isinstance(n, ast.FunctionDef)], test


def test_every_space_has_a_row_and_every_law_a_space():
    exported = {
        name for name, module in fokker._EXPORTS.items() if module.startswith("fokker.manifolds") and name[0].isupper()
    }
    assert [row.name for row in SPACES if row.name != type(row.example).__name__] == []
    assert {row.name for row in SPACES} == exported
    assert {law for row in SPACES for law in row.laws} == set(LAWS)


@pytest.mark.parametrize("row", SPACES, ids=lambda row: row.name)
def test_the_laws_are_those_of_its_kind(row):
    space = row.example
    assert isinstance(space, (Embedded, Mapped))
    assert ("flow" in row.laws) == isinstance(space, Manifold)
    assert ("map" in row.laws) == isinstance(space, Mapped)


def test_the_laws_are_run_on_the_spaces_that_name_them():
    """By the lists that the tests are parametrised with."""
    from tests.manifolds import test_implicit, test_laws, test_mapped

    run_on = {
        "flow": test_laws.MANIFOLDS, "uniform": test_laws.COMPACT, "two forms": test_laws.CHARTS,
        "float32": test_laws.SINGLE, "large": test_laws.LARGE, "map": test_mapped.SETS,
        "constraint": test_implicit.IMPLICIT,
    }  # fmt: skip
    for law, spaces in run_on.items():
        assert {type(m).__name__ for m in spaces} == {row.name for row in SPACES if law in row.laws}, law


def test_the_page_is_up_to_date():
    maker = TESTS.parent / "docs" / "make_spaces.py"
    spec = importlib.util.spec_from_file_location("make_spaces", maker)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(SPACES, LAWS), "run python docs/make_spaces.py"
