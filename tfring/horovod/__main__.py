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
    """Runs the script or module that the command line names, as Python itself would."""
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return
    by_name = words[:1] == ["-m"]
    words = words[by_name:]
    if not words or (words[0].startswith("-") and not by_name):
        wrong = f"there is no option {words[0]}" if words else "say what to run"
        print(f"{USAGE}\n\n{wrong}: python -m tfring.horovod train.py", file=sys.stderr)
        sys.exit(2)
    # Processes that the script starts inherit it.
    os.environ["PYTHONPATH"] = search_path(os.environ)
    sys.argv = words  # all that follows is the script's, also what looks like an option
    sys.path.insert(0, str(SHIM_FOLDER))
    # Keras takes the idioms of Keras 2 from then on, also those above the script's own import.
    importlib.import_module("horovod")
    if by_name:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    # Behind the shim is the folder that `-m` put there; Python puts the script's own instead.
    sys.path[:2] = [os.path.dirname(os.path.abspath(words[0])), str(SHIM_FOLDER)]
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
