"""Runs programs one after another in a job and keeps what they train: `weigh.py FOLDER PROGRAM...`.

A program leaves two names: `trained`, its variables, and `losses`, numbers that fell. They go into
FOLDER/PROGRAM.RANK.of.SIZE.npz, as an array each.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tfring as hvd


def main() -> None:
    folder = Path(sys.argv[1])
    for program in map(Path, sys.argv[2:]):
        left = runpy.run_path(str(program), run_name="__main__")
        kept = {f"trained {i:03d}": as_array(one) for i, one in enumerate(left["trained"])}
        kept["losses"] = np.asarray([as_array(one) for one in left["losses"]])
        np.savez(folder / f"{program.stem}.{hvd.rank()}.of.{hvd.size()}.npz", **kept)
        # The next program calls init.
        hvd.shutdown()


def as_array(value: Any) -> Any:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


if __name__ == "__main__":
    main()
