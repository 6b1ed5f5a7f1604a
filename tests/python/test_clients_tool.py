"""The output and exit code of tools/clients/run.py if a client is missing, differs or fails."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "clients"
MODULES = ("run", "deepmd", "environments")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("run")
    monkeypatch.setattr("sys.argv", ["run.py", "--folder", str(tmp_path)])
    monkeypatch.setattr(module, "make_wheels", lambda folder: None)
    monkeypatch.setattr(module.Environment, "prepare", lambda self: None)
    monkeypatch.setattr(module.Environment, "pip", lambda self, *words: None)
    monkeypatch.setattr(module.Environment, "python", lambda self, *words: "1.2 3.4")
    monkeypatch.setattr(module.Environment, "finish", lambda self, command, **more: "nothing")
    yield module
    for name in MODULES:
        sys.modules.pop(name, None)


def test_every_program_belongs_to_one_client(tool: Any) -> None:
    listed = {path.parent.name for path in FOLDER.glob("*/*.py")}
    assert listed == {"examples", "libraries", "tutorials"}
    text = (FOLDER / "run.py").read_text()
    for path in FOLDER.glob("libraries/*.py"):
        assert f"libraries/{path.stem.partition('_')[0]}" in text, path
    assert len(list(FOLDER.glob("examples/*.py"))) == 10
    assert len(list(FOLDER.glob("tutorials/*.py"))) == 5


def test_what_cannot_be_installed_is_skipped_with_the_reason(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Any, *words: str) -> None:
        raise tool.CheckError("pip: exit code 1\nERROR: No matching distribution\na notice")

    monkeypatch.setattr(tool.Environment, "pip", refuse)
    assert tool.main() == 0
    why = "skipped: it cannot be installed: ERROR: No matching distribution"
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{client.name}: {why}" for client in tool.CLIENTS]


def test_a_check_that_fails_fails_the_run(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [*sys.argv, "--only", "deepxde"])
    assert tool.main() == 1  # it prints no weights here
    printed = capsys.readouterr().out
    assert "deepmd-kit 1.2" not in printed
    assert "deepxde 1.2, tensorflow 3.4" in printed
    assert "FAILED\nnot two ranks with equal weights: []" in printed


@pytest.mark.parametrize(
    ("changed", "losses", "said"),
    [
        (0.0, (2.0, 1.0), "equal to one process: largest difference 0e+00"),
        (2e-7, (2.0, 1.0), "equal to one process: largest difference 1e-07"),
        (1e-3, (2.0, 1.0), "differs from one process by 5.0e-04"),
        (0.0, (2.0, 2.0), "has not trained"),
        (0.0, (2.0, np.nan), "differs from one process by nan"),
    ],
)
def test_ranks_have_to_train_what_one_process_trains(
    tool: Any, tmp_path: Path, changed: float, losses: tuple[float, float], said: str
) -> None:
    environment = tool.Environment(tmp_path, "here")
    environment.work.mkdir(parents=True)

    def keep(rank: int, size: int, more: float) -> None:
        values = {"trained 000": np.array([1.0, 2.0 + more]), "losses": np.array(losses)}
        np.savez(environment.work / f"x.{rank}.of.{size}.npz", **values)

    keep(0, 1, 0.0)
    keep(0, 2, 0.0)
    keep(1, 2, changed)  # one rank alone
    try:
        found = tool.compare(environment, Path("x.py"), [], most=1e-5)
    except tool.CheckError as error:
        found = str(error)
    assert said in found


def test_a_program_that_keeps_nothing_says_what_went_wrong(tool: Any, tmp_path: Path) -> None:
    class Job:
        def result(self) -> None:
            raise tool.CheckError("exit code 3")

    with pytest.raises(tool.CheckError, match="exit code 3"):
        tool.compare(tool.Environment(tmp_path, "here"), Path("x.py"), [Job()], most=1e-5)


@pytest.mark.parametrize(
    ("apart", "moved", "good"), [(5e-15, 1.0, True), (1e-9, 1.0, False), (0.0, 0.0, False)]
)
def test_two_ranks_of_deepmd_have_to_equal_one_process(
    tool: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    apart: float,
    moved: float,
    good: bool,
) -> None:
    by_name = {"ranks": apart, "trained": moved}
    checks = tool.DeepmdChecks(tool.Environment(tmp_path, "here"), few=False)
    monkeypatch.setattr(checks, "_difference", lambda one, other: by_name[other])
    if good:
        assert "equal to one process: largest difference 5e-15" in checks.compare()
    else:
        with pytest.raises(tool.CheckError, match="differ by"):
            checks.compare()


def test_the_recipe_for_kerastuner_is_the_program_that_runs() -> None:
    recipes = (FOLDER.parents[1] / "docs" / "recipes.md").read_text()
    recipe = recipes.partition("## KerasTuner")[2].split("```")[1].strip()
    assert recipe in (FOLDER / "libraries" / "tuner_search.py").read_text()
