"""The command `horovodrun`, and what keeps Horovod and tfring-horovod apart."""

from __future__ import annotations

import importlib.metadata
import sys

from tfring.horovod.shim import HOROVOD_VERSION


def refuse_both() -> None:
    """Raises ImportError where Horovod is installed, too: both have files of the same names."""
    try:
        version = importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"horovod {version} and tfring-horovod are both installed, and have overwritten files of "
        "each other. Remove both (pip uninstall horovod tfring-horovod), and install one again"
    )


def horovodrun() -> int:
    """Runs `tfring run --horovod` with the options of horovodrun."""
    from tfring.launch import cli  # programs that import horovod do not need it

    words = sys.argv[1:]
    if words in (["-v"], ["--version"]):
        print(HOROVOD_VERSION)
        return 0
    try:
        refuse_both()
    except ImportError as error:
        print(f"horovodrun: {error}", file=sys.stderr)
        return 2
    return cli.main(["run", "--horovod", *words])
