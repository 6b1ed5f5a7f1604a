"""Prints what pyproject.toml asks for to build, test and run, one requirement a line."""

from __future__ import annotations

import sys
from pathlib import Path

import tomli


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    project = tomli.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    for wanted in (
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        project["project"]["optional-dependencies"]["dev"],
    ):
        print("\n".join(wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
