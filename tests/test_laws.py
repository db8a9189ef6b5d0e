"""The table of laws names tests that exist, leaves out no sampler, and is the page that people read."""

import ast
import importlib.util
from pathlib import Path

import pytest

from tests.laws import LAWS

TESTS = Path(__file__).resolve().parent
SAMPLERS = [TESTS.parent / "src" / "fokker" / folder for folder in ("sgmcmc", "geodesic")]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kernel)
def test_the_evidence_exists(law):
    for test in law.proof:
        file, name = test.split("::")
        functions = [n.name for n in ast.parse((TESTS / file).read_text()).body if isinstance(n, ast.FunctionDef)]
        assert name in functions, test


def test_every_sampler_has_a_law():
    """A sampler is a module with a class of its own name."""
    classes = {
        path.stem
        for path in (p for folder in SAMPLERS for p in folder.glob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == path.stem
    }
    assert classes == {law.kernel for law in LAWS}


def test_the_page_is_up_to_date():
    maker = TESTS.parent / "docs" / "make_laws.py"
    spec = importlib.util.spec_from_file_location("make_laws", maker)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(LAWS), "run python docs/make_laws.py"
