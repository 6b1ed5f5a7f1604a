"""Many inits and shutdowns in one process leave nothing behind."""

from __future__ import annotations

import sys

import pytest
from launcher_tools import mpirun, run, run_python, write_script

pytest.importorskip("tfring._native")

# After the first cycles the allocator and the libraries have what they need.
CYCLES = """
    import gc, os, sys
    import numpy as np
    import tfring as hvd
    from tfring._native import core

    WARM_UP, CYCLES = 30, 130
    # Allocators keep some. Per cycle it is less than one of the tensors here, a ring of shared
    # memory or the stack of a thread.
    ALLOWED_BYTES = 1 << 20

    def resident():
        gc.collect()
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def maps():
        with open("/proc/self/maps") as lines:
            return sum("memfd" in line or "/dev/shm" in line for line in lines)

    def held():
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "shared maps": maps(),
        }

    def cycle(number):
        sets = [hvd.ProcessSet([0])] if int(sys.argv[1]) > 1 else None
        hvd.init(process_sets=sets)
        size = hvd.size()
        assert size == int(sys.argv[1])
        value = np.full(20000, float(number), np.float32)
        assert core.allreduce(value, name="cycle", op=1)[-1] == number * size
        if sets:
            last = hvd.add_process_set([size - 1])
            for one in (*sets, last):
                if one.included():
                    core.allreduce(value, name="inside", op=1, process_set=one.process_set_id)
            hvd.remove_process_set(last)
        hvd.barrier()
        hvd.shutdown()

    for number in range(WARM_UP):
        cycle(number)
    before, memory = held(), resident()
    for number in range(WARM_UP, CYCLES):
        cycle(number)
    grown = resident() - memory
    os.write(1, f"grown by {grown} bytes, {before} -> {held()}\\n".encode())
    # A thread of the last cycle may still be about to end, in `before`, too.
    after = held()
    assert all(after[kind] <= before[kind] for kind in before), f"{before} before, {after} after"
    assert grown < ALLOWED_BYTES, f"resident memory grew by {grown} bytes"
"""


def test_single_process(tmp_path):
    done = run_python(write_script(tmp_path, CYCLES), "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("grown by") == 1


@pytest.mark.parametrize("launch", ["tfring run", "mpirun"])
def test_two_ranks(tmp_path, launch):
    path = write_script(tmp_path, CYCLES)
    with_tfring = ["-np", 2, sys.executable, path, "2"]
    done = mpirun(2, path, "2") if launch == "mpirun" else run(*with_tfring)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("grown by") == 2
