"""``python -m tfring``: the same as the ``tfring`` command."""

import sys

from tfring.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
