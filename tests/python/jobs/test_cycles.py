"""Many inits in one process leave nothing behind, whether they end in order or are abandoned."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launcher_tools import run, run_python, write_script

pytest.importorskip("tfring.runtime._native")

# After the first cycles the allocator and the libraries have their memory.
CYCLES = """
    import ctypes, gc, itertools, logging, os, statistics, sys, time
    from pathlib import Path
    import numpy as np
    import tfring as hvd
    from tfring import world
    from tfring.runtime._native import core
    from tfring.observe.explain.explain import explain_now
    from tfring.observe.recorder.own import own_path

    WARM_UP, BLOCKS, CYCLES = map(int, sys.argv[2:5])
    # A cycle. A tensor here, a ring of shared memory or what belongs to a thread has more.
    ALLOWED_BYTES = 10_000

    class Mallinfo(ctypes.Structure):
        NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]

    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo

    def allocated():
        # By malloc, in all threads, and by Python, whose smallest blocks have 16 bytes or more.
        # Unlike resident memory it does not depend on what the allocators keep for later.
        gc.collect()
        found = mallinfo()
        return found.uordblks + found.hblkhd + 16 * sys.getallocatedblocks()

    def settled():
        held()
        samples = []
        for _ in range(10):  # a thread that ends gives its memory back a moment later
            time.sleep(0.02)
            samples.append(allocated())
        return min(samples)

    def maps():
        with open("/proc/self/maps") as lines:
            return sum("memfd" in line or "/dev/shm" in line for line in lines)

    def held():
        # The memory of an abandoned generation is in use until it has ended.
        while core.abandoned():
            time.sleep(0.01)
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "shared maps": maps(),
        }

    def barrier():
        if int(sys.argv[1]) == 1:
            hvd.barrier()  # through TensorFlow
        else:
            core.barrier(name="cycle")

    def cycle(number):
        sets = [hvd.ProcessSet([0])] if int(sys.argv[1]) > 1 else None
        hvd.init(process_sets=sets)
        if number == 0:
            # What a lost rank leads to, which not every run has: the thread that writes the log and
            # what an explanation loads stay.
            logging.getLogger("tfring").warning("the first cycle")
            explain_now([Path(own_path()).parent])
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
        if number % 4 == 0:
            barrier()
            hvd.shutdown()
            return
        try:
            barrier()
        except Exception as error:  # the others may be gone already
            assert "was lost" in str(error), error
        world.abandon("the cycle is over")
        assert not hvd.is_initialized() and core.generation_state().number == number + 1

    numbers = itertools.count()
    for _ in range(WARM_UP):
        cycle(next(numbers))
    before, marks = held(), [settled()]
    for _ in range(BLOCKS):
        for _ in range(CYCLES):
            cycle(next(numbers))
        marks.append(settled())
    # The last thread of the last cycle may still be about to end. What leaks stays.
    for _ in range(3000):
        after = held()
        if all(after[kind] <= before[kind] for kind in before):
            break
        time.sleep(0.02)
    # What is loaded once shows in one block, a leak in all of them.
    grown = statistics.median(b - a for a, b in itertools.pairwise(marks))
    os.write(1, f"grown by {grown} bytes, {before} -> {after}\\n".encode())
    assert all(after[kind] <= before[kind] for kind in before), f"{before} before, {after} after"
    assert grown < CYCLES * ALLOWED_BYTES, f"in {CYCLES} cycles {grown} bytes more: {marks}"
"""
# How many cycles run before the first count, how many blocks follow, and how many cycles a block
# has: a multiple of four, as `cycle` has cycles of two kinds in turns of four. The program counts
# after each block, so that memory kept until the next cycle is the same.
FEW = ["8", "5", "4"]


def test_single_process(tmp_path: Path) -> None:
    done = run_python(write_script(tmp_path, CYCLES), "1", *FEW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("grown by") == 1


@pytest.mark.slow
def test_two_ranks(tmp_path: Path) -> None:
    path = write_script(tmp_path, CYCLES)
    done = run("-np", 2, sys.executable, path, "2", *FEW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("grown by") == 2
