"""The command: a file is sampled, resumed, audited and reported; what is wrong is said in a sentence."""

import textwrap

import numpy as np
import pytest
from typer.testing import CliRunner

import fokker
from fokker import cli
from fokker.errors import InputError, StoreError

FILE = """
    import numpy as np, fokker
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2)).astype(np.float32)
    target = fokker.glm(X, (X[:, 0] + rng.logistic(size=300) > 0).astype(np.float32), names=["age", "<b>dose</b>"])
    kernel = fokker.sgld(step_size=2e-3)
"""
CALL = ["--draws", "40", "--warmup", "20", "--thin", "2", "--chains", "2", "--batch-size", "50"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(textwrap.dedent(FILE))
    return tmp_path


def call(*words):
    result = CliRunner().invoke(cli.app, [str(w) for w in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_file_is_sampled_continued_audited_and_reported(here):
    assert call("sample", "model.py", "--store", "run.zarr", *CALL).exit_code == 0
    before = np.asarray(fokker.open("run.zarr").draws["beta"])
    out = call("resume", "run.zarr", "--draws", "60").output
    after = np.asarray(fokker.open("run.zarr").draws["beta"])
    assert after.shape == (2, 60, 3) and (after[:, :40] == before).all()
    assert "beta[age]" in out
    assert "effective draws" in call("audit", "run.zarr").output
    assert call("report", "run.zarr", "--out", "page.html").exit_code == 0
    page = (here / "page.html").read_text()
    assert "data:image/png;base64" in page and "&lt;b&gt;dose" in page and "<b>dose" not in page


@pytest.mark.slow
def test_a_file_that_defines_init_is_audited_again(here):
    """Its target knows no start: how parameters are nested is in the file, or in the names that the store keeps."""
    file = (
        FILE
        + """
    import dataclasses
    target, init = dataclasses.replace(target, start=None), target.start
    """
    )
    (here / "model.py").write_text(textwrap.dedent(file))
    call("sample", "model.py", "--store", "run.zarr", *CALL)
    assert "other modes" in call("audit", "run.zarr", "--again").output


def test_a_changed_file_is_not_resumed(here):
    call("sample", "model.py", "--store", "run.zarr", *CALL)
    (here / "model.py").write_text(textwrap.dedent(FILE) + "\n# changed\n")
    with pytest.raises(StoreError, match="has changed"):
        call("resume", "run.zarr", "--draws", "60")


def test_a_file_without_a_target_is_refused(here):
    (here / "empty.py").write_text("x = 1\n")
    with pytest.raises(InputError, match="does not define `target`"):
        call("sample", "empty.py")
    with pytest.raises(InputError, match="no file"):
        call("sample", "missing.py")


def main(monkeypatch, *words):
    """The exit code of the command as it is called."""
    monkeypatch.setattr("sys.argv", ["fokker", *words])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


IN_THE_FILE = [
    ("FILE + bad", "y = 1 / 0", "line 8: y = 1 / 0", "ZeroDivisionError: division by zero"),
    ("unreadable", "y = = 1", "line 8: y = = 1", "SyntaxError: invalid syntax"),
    ("input", "target = fokker.glm(X, X)", "line 8: target = fokker.glm(X, X)", "InputError: glm needs X of shape"),
    ("likelihood", "target = fokker.Target(lambda p: 0.0, lambda p, y: y[undefined], X, start=0.0)",
     "line 8: target = fokker.Target(", "NameError: name 'undefined' is not defined"),
]  # fmt: skip


@pytest.mark.parametrize("last, place, what", [case[1:] for case in IN_THE_FILE], ids=[case[0] for case in IN_THE_FILE])
def test_an_error_of_the_users_file_shows_its_line(here, monkeypatch, capsys, last, place, what):
    (here / "model.py").write_text(textwrap.dedent(FILE) + "\n" + last + "\n")
    assert main(monkeypatch, "sample", "model.py", *CALL) == 1
    said = capsys.readouterr().err
    assert f"model.py, {place}" in said and what in said
    assert "Traceback" not in said and "cli.py" not in said and len(said) < 500


def test_messages_speak_of_options_not_of_arguments(here, monkeypatch, capsys):
    (here / "run.zarr").mkdir()
    call("sample", "model.py", "--store", "run.zarr", *CALL)
    assert main(monkeypatch, "sample", "model.py", *CALL) == 2
    said = capsys.readouterr().err
    assert "--overwrite to delete it" in said and "overwrite=True" not in said
    assert main(monkeypatch, "sample", "model.py", "--batch-size", "301", "--store", "other.zarr") == 2
    assert "got --batch-size 301 for 300 rows" in capsys.readouterr().err
    assert call("sample", "model.py", "--overwrite", *CALL).exit_code == 0


def test_errors_are_sentences(here, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["fokker", "audit", "nowhere.zarr"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert "StoreError" in capsys.readouterr().err


def test_the_demonstration_leaves_something_to_look_at(here):
    result = call("demo", "--quick", "--out", "demo")
    assert "debt_to_income" in result.output and "truth" in result.output
    assert (here / "demo" / "report.html").stat().st_size > 10_000
    assert fokker.open(here / "demo" / "run.zarr").state == "complete"
