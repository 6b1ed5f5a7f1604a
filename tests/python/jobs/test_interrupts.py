"""Ctrl-C while ranks wait for each other."""

from __future__ import annotations

import json
import re
import signal
import threading
import time

import pytest
from launcher_tools import (
    LIMIT_SECONDS,
    REPORT,
    pids_in,
    run,
    start,
    write_script,
)

from tfring.runtime.signals import interrupts

native = pytest.importorskip("tfring.runtime._native")

# Rank 1 gets SIGINT while it waits for a collective that rank 0 does not call; rank 0 waits for
# a different one.
ONE_RANK = """
    import json, os, signal, threading, time
    from pathlib import Path
    import tensorflow as tf
    import tfring as hvd
    from tfring.runtime._native import core
    from tfring.observe.recorder.job import load_job
    from tfring.observe.recorder.own import own_path

    hvd.init()
    rank = hvd.rank()

    def wait(ranks):
        records = load_job([own_path().parent]).records
        waiting = [[c for c in records[r].calls if c.waits and c.name != "together"] for r in ranks]
        return all(waiting)

    def made(name, jit):
        return tf.function(lambda: hvd.allreduce(tf.ones(3), name=name), jit_compile=jit)

    traced = [made(f"traced.{number}", False) for number in range(2)]
    compiled = [made(f"compiled.{number}", True) for number in range(2)]
    for call in (*traced, *compiled):
        call()  # a signal in the midst of tracing or compiling would be none in a collective

    def own_handler(number, frame):
        seen.append(number)

    seen = []
    calls = {
        "eager": lambda: hvd.allreduce(tf.ones(3), name=f"eager.{rank}"),
        "function": traced[rank],
        "jit": compiled[rank],
        "object": lambda: hvd.allgather_object(rank, name=f"object.{rank}"),
        "barrier": hvd.barrier if rank else lambda: hvd.allreduce(tf.ones(3), name="other"),
        "native": lambda: core.barrier(name=f"native.{rank}"),
    }

    def interrupt(case, ranks):
        while not wait(ranks):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
        report(f"sent.{case}", rank)

    told = {}
    for case, call in calls.items():
        hvd.allreduce(tf.ones(1), name="together")
        if rank == 1:
            threading.Thread(target=interrupt, args=(case, [0, 1]), daemon=True).start()
        try:
            call()
            told[case] = ["no error"]
        except KeyboardInterrupt:
            told[case] = ["KeyboardInterrupt", ""]
        except Exception as error:
            told[case] = [type(error).__name__, str(error)]
        total = hvd.allreduce(tf.ones(3), op=hvd.Sum, name="after")
        told[case].append(float(total[0]))

    # A handler of the program's own: the collective goes on until the other rank comes.
    if rank == 1:
        signal.signal(signal.SIGINT, own_handler)
        threading.Thread(target=interrupt, args=("own handler", [1]), daemon=True).start()
    else:
        while not os.path.exists(f"{sys.argv[1]}/sent.own handler"):
            time.sleep(0.05)
    told["own handler"] = [float(hvd.allreduce(tf.ones(3), op=hvd.Sum, name="last")[0]), seen]
    report(f"told.{rank}", json.dumps(told))
"""

DEADLOCK = """
    import os
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core

    hvd.init()
    report(f"pid.{hvd.rank()}", os.getpid())
    core.allreduce(np.ones(3), name=f"only.{hvd.rank()}", op=1)
"""


def interrupted(folder):
    """Both ranks' reports on each call that rank 1 interrupted: its end, and a sum after it."""
    script = write_script(folder, ONE_RANK, header=REPORT)
    job = run("-np", 2, "python", script, folder)
    assert job.returncode == 0, job.stderr
    return [json.loads((folder / f"told.{rank}").read_text()) for rank in range(2)]


def test_interrupt_of_one_rank_ends_the_calls_of_all(tmp_path):
    """The rank raises KeyboardInterrupt, the other an error that says why; both go on."""
    told = interrupted(tmp_path)
    own_handler = [rank.pop("own handler") for rank in told]
    for case, (kind, _, total) in told[1].items():
        assert kind == "KeyboardInterrupt", (case, kind)
        assert total == 2.0, case
    for case, (kind, message, total) in told[0].items():
        assert kind in ("AbortedError", "CoreError"), (case, kind, message)
        assert re.search(r"rank 1 .*interrupted \(Ctrl-C, SIGINT\)", message, re.DOTALL), case
        assert total == 2.0, case
    assert own_handler == [[2.0, []], [2.0, [signal.SIGINT]]]


@pytest.mark.parametrize("back", ["before the thread runs", "while it waits", "never"])
def test_a_main_thread_that_is_back_is_left_alone(monkeypatch, back):
    """By then it is in a different step. Only `never` may withdraw anything."""

    class Waits(threading.Event):
        def wait(self, timeout=None):
            if back == "while it waits":
                self.set()
            return False  # time is up

    done = []
    cancel = native.core.cancel_calls
    monkeypatch.setattr(native.core, "call_in_main_thread", lambda _: False)
    monkeypatch.setattr(native.core, "cancel_calls", lambda *args: done.append(cancel(*args)))
    monkeypatch.setattr(interrupts.threading, "Event", Waits)
    monkeypatch.setattr(interrupts._State, "handled", 7)
    interrupts._withdraw_until_main_thread_runs(6 if back == "before the thread runs" else 7)
    assert done == [back == "never"]


def test_interrupt_ends_a_job_whose_ranks_wait_for_each_other(tmp_path):
    """Each rank waits in a different collective; no other rank would ever join it."""
    script = write_script(tmp_path, DEADLOCK, header=REPORT)
    job = start("-np", 2, "python", script, tmp_path)
    pids_in(tmp_path, 2)
    time.sleep(0.5)  # so that both wait
    job.send_signal(signal.SIGINT)
    _, err = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode != 0
    assert "a second one kills them at once" in err
    assert "stopped by SIGINT" in err and "Traceback" not in err, err
