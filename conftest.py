"""What is shown runs: Python blocks of README.md and docs/, `>>>` examples of docstrings, all are tests."""

import os
import tempfile

from sybil import Sybil
from sybil.document import PythonDocStringDocument
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection

os.environ.setdefault("MPLBACKEND", "Agg")  # no window opens while tests run


def _away_from_home(namespace: dict) -> None:
    """A page may write files: each starts in an empty folder of its own."""
    namespace["_folder"] = tempfile.TemporaryDirectory()
    namespace["_home"] = os.getcwd()
    os.chdir(namespace["_folder"].name)


def _back_home(namespace: dict) -> None:
    os.chdir(namespace["_home"])
    namespace["_folder"].cleanup()


def pages(**where: object) -> Sybil:
    return Sybil(parsers=[PythonCodeBlockParser()], setup=_away_from_home, teardown=_back_home, **where)


docstrings = Sybil(
    parsers=[DocTestParser()], path="src", pattern="*.py", document_types={".py": PythonDocStringDocument}
)

pytest_collect_file = SybilCollection(
    [pages(filenames=["README.md"]), pages(path="docs", pattern="*.md"), docstrings]
).pytest()
