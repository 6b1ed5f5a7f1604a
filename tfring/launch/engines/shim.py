"""Whether programs of this process take tfring for Horovod."""

from __future__ import annotations

import sys

from tfring.horovod.shim import SHIM_FOLDER


def uses_shim() -> bool:
    """Whether `import horovod` means tfring in this process."""
    return str(SHIM_FOLDER) in sys.path


def use_shim() -> None:
    """Lets `import horovod` mean tfring in this process."""
    if not uses_shim():
        sys.path.insert(0, str(SHIM_FOLDER))
