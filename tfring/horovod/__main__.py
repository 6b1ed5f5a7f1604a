"""`python -m tfring.horovod train.py ...`: runs a Horovod script on tfring."""

from __future__ import annotations

import importlib
import os
import runpy
import sys

from tfring.integration import SHIM_FOLDER, search_path

USAGE = """\
usage: python -m tfring.horovod [-m module | script] [arguments]

Runs a Horovod script or module on tfring: `import horovod` means tfring in it."""


def main() -> None:
    """Runs the script or module of the command line as Python would."""
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return
    by_name = words[:1] == ["-m"]
    words = words[by_name:]
    if not words or (words[0].startswith("-") and not by_name):
        wrong = "no script or module is given" if words else "say what to run"
        print(f"{USAGE}\n\n{wrong}: python -m tfring.horovod train.py", file=sys.stderr)
        sys.exit(2)
    # Child processes of the script inherit it.
    os.environ["PYTHONPATH"] = search_path(os.environ)
    sys.argv = words  # all that follows is the script's, even if it looks like an option
    sys.path.insert(0, str(SHIM_FOLDER))
    # From here on Keras accepts the idioms of Keras 2, also above the script's own import.
    importlib.import_module("horovod")
    if by_name:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    # `-m` put its folder there, behind the shim. Python puts the script's own folder instead.
    sys.path[:2] = [os.path.dirname(os.path.abspath(words[0])), str(SHIM_FOLDER)]
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
