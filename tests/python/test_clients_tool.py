"""The output and exit code of tools/clients/run.py if a client is missing or fails."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "tools" / "clients" / "run.py"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("clients_run", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr("sys.argv", ["run.py", "--folder", str(tmp_path)])
    monkeypatch.setattr(module.Clients, "prepare", lambda self: None)
    monkeypatch.setattr(module.Clients, "_pip", lambda self, *words: None)
    monkeypatch.setattr(module.Clients, "_finish", lambda self, command, **more: "nothing")
    return module


def test_what_cannot_be_installed_is_skipped_with_the_reason(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Any, *words: str) -> None:
        raise tool.CheckError("pip: exit code 1\nERROR: No matching distribution\na notice")

    monkeypatch.setattr(tool.Clients, "_pip", refuse)
    assert tool.main() == 0
    printed = capsys.readouterr().out.splitlines()
    why = "skipped, it cannot be installed: ERROR: No matching distribution"
    assert printed == [f"DeePMD-kit: {why}", f"DeepXDE: {why}"]


def test_a_check_that_fails_fails_the_run(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.Clients, "deepmd", lambda self, few: None)
    assert tool.main() == 1  # DeepXDE prints no weights here
    assert "FAILED\nnot two ranks with equal weights: []" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("apart", "moved", "good"), [(5e-15, 1.0, True), (1e-9, 1.0, False), (0.0, 0.0, False)]
)
def test_two_ranks_have_to_equal_one_process(
    tool: Any, monkeypatch: pytest.MonkeyPatch, apart: float, moved: float, good: bool
) -> None:
    by_name = {"ranks": apart, "trained": moved}
    monkeypatch.setattr(tool.Clients, "_difference", lambda self, one, other: by_name[other])
    clients = tool.Clients(Path())
    clients.check("exact", clients._exact)
    assert clients.failed is not good
