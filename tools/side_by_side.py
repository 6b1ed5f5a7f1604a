"""side_by_side.py LOG COMMAND... -- COMMAND...: runs two commands at the same time.

Shows the output of the second one as it comes, then that of the first one, kept in LOG.
The exit status is 0 if both end with 0.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path


def main(words: list[str]) -> int:
    log, commands = Path(words[0]), words[1:]
    cut = commands.index("--")
    with log.open("wb") as output:
        first = subprocess.Popen(commands[:cut], stdout=output, stderr=subprocess.STDOUT)
        code = 1
        with contextlib.suppress(KeyboardInterrupt):  # the commands get it, too
            code = subprocess.call(commands[cut + 1 :])
        code = first.wait() or code
    sys.stdout.flush()
    with log.open("rb") as output:
        shutil.copyfileobj(output, sys.stdout.buffer)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
