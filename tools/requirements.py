"""Prints requirements of pyproject.toml, one per line.

Arguments: names of extras; "build" means the needs of `pip install .` to build and run tfring.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    groups = dict(project["project"]["optional-dependencies"])
    groups["build"] = project["build-system"]["requires"] + project["project"]["dependencies"]
    for name in sys.argv[1:]:
        print("\n".join(groups[name]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
