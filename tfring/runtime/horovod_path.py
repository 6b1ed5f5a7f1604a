"""Whether `import horovod` means tfring: the folder of the shim on the import path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

# Holds nothing but horovod/__init__.py.
SHIM_FOLDER = Path(__file__).resolve().parents[1] / "horovod" / "import_path"


def search_path(environ: Mapping[str, str]) -> str:
    """Returns a PYTHONPATH with the shim's folder in front of what `environ` has."""
    rest = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(SHIM_FOLDER), *(part for part in rest if part != str(SHIM_FOLDER))])


def uses_shim() -> bool:
    """Whether `import horovod` means tfring in this process."""
    return str(SHIM_FOLDER) in sys.path


def use_shim() -> None:
    """Lets `import horovod` mean tfring in this process."""
    if not uses_shim():
        sys.path.insert(0, str(SHIM_FOLDER))
