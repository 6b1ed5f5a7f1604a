"""`python -m tfring.compat train.py ...`: runs a Horovod script on tfring."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from tfring.compat.shim import SHIM_FOLDER, search_path


def main() -> None:
    """Runs the script or module that the command line names, as Python itself would."""
    parser = argparse.ArgumentParser(
        prog="python -m tfring.compat",
        description="Runs a Horovod script on tfring: `import horovod` means tfring in it.",
        usage="python -m tfring.compat [-m module | script] [arguments]",
    )
    parser.add_argument("-m", dest="module", help="run a module instead of a file")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the script and its arguments")
    options = parser.parse_args()
    words = list(options.words)
    if not options.module and not words:
        parser.error("say what to run: python -m tfring.compat train.py")
    # Processes that the script starts inherit it.
    os.environ["PYTHONPATH"] = search_path(os.environ)
    if options.module:
        sys.argv = [options.module, *words]
        sys.path.insert(0, str(SHIM_FOLDER))
        runpy.run_module(options.module, run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    # The first entry is the folder that `-m` put there; Python puts the script's own instead.
    sys.path[0] = os.path.dirname(os.path.abspath(words[0]))
    sys.path.insert(1, str(SHIM_FOLDER))
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
