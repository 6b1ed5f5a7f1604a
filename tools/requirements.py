"""Prints what pyproject.toml asks for to build, test and run, one requirement a line.

With an argument: the requirements of that extra alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import tomli


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    project = tomli.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    asked = [extras[name] for name in sys.argv[1:]]
    needed = [project["build-system"]["requires"], project["project"]["dependencies"]]
    for wanted in asked or [*needed, extras["dev"]]:
        print("\n".join(wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
