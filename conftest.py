"""What is shown runs: Python blocks of README.md and docs/, `>>>` examples of docstrings, all are tests."""

import os
import tempfile

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser

os.environ.setdefault("MPLBACKEND", "Agg")  # no window opens while tests run


def _away_from_home(namespace: dict) -> None:
    """A page may write files: each starts in an empty folder of its own."""
    namespace["_folder"] = tempfile.TemporaryDirectory()
    namespace["_home"] = os.getcwd()
    os.chdir(namespace["_folder"].name)


def _back_home(namespace: dict) -> None:
    os.chdir(namespace["_home"])
    namespace["_folder"].cleanup()


pytest_collect_file = (
    Sybil(
        parsers=[PythonCodeBlockParser()],
        patterns=["README.md", "docs/*.md", "docs/**/*.md"],
        setup=_away_from_home,
        teardown=_back_home,
    )
    + Sybil(
        parsers=[DocTestParser()],
        pattern="src/**/*.py",
        document_types={".py": PythonDocStringDocument},
    )
).pytest()
