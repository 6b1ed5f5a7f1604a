"""Programs for the ranks of jobs on several hosts, without TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Long limits: on a slow machine ranks still find each other, and only a cut-off rank is lost.
PATIENT = {"TFRING_START_TIMEOUT": "300"}
PATIENT_RUN = ("--start-timeout", 300, "--agent-timeout", 60)

# Prints rank, size, local rank, local size, the sum of all ranks + 1, and the host.
WHO_IS_THERE = """
    import json, os, socket
    import numpy as np
    from tfring.runtime import topology
    from tfring import world
    from tfring.runtime._native import core

    world.init()
    total = core.allreduce(np.array([topology.rank() + 1]), name="sum", op=1)[0]
    facts = [topology.rank(), topology.size(), topology.local_rank(), topology.local_size()]
    print(json.dumps([*facts, int(total), socket.gethostname()]), flush=True)
"""
# The output of two hosts with two ranks each, in rank order.
ON_TWO_HOSTS = [[rank, 4, rank % 2, 2, 10, f"h{rank // 2}"] for rank in range(4)]

# A step is an allreduce. The first argument is a folder for a log and for checkpoints. At SIGTERM
# the ranks publish a checkpoint, all after the same step, and end.
TRAINING = """
    import json, os, signal, socket, sys, time
    import numpy as np
    import tfring as hvd
    from tfring.runtime._native import core
    from tfring.checkpoint import Checkpointer

    FOLDER = sys.argv[1]
    leave = []
    signal.signal(signal.SIGTERM, lambda *_: leave.append(True))
    log = os.open(f"{FOLDER}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    run = int(os.environ.get("SLURM_RESTART_COUNT") or 0)

    def say(event, step):
        facts = {"rank": hvd.rank(), "size": hvd.size(), "host": socket.gethostname()}
        line = {"event": event, "step": step, "run": run, "pid": os.getpid(), **facts}
        os.write(log, (json.dumps(line) + "\\n").encode())

    def broadcast(value, root_rank):
        data = np.frombuffer(json.dumps(value).ljust(1000).encode(), np.uint8)
        return json.loads(core.broadcast(data, name="state", root=root_rank).tobytes())

    checkpoints = Checkpointer(f"{FOLDER}/checkpoints")
    hvd.init()

    @hvd.elastic.run
    def train(state):
        say("train", state.step)
        if hvd.rank() == 0:
            checkpoints.reserve()
        while True:
            mine = np.array([bool(leave), os.path.exists(f"{FOLDER}/stop")], np.int64)
            if core.allreduce(mine, name="wishes", op=4).any():
                break
            time.sleep(0.01)
            state.step += 1
            state.commit()
            say("step", state.step)
        if hvd.rank() == 0:
            checkpoints.save({"step": state.step}, step=state.step)
            checkpoints.wait()
            say("published", state.step)
        core.barrier(name="published")  # if rank 0 is lost before, another one publishes

    begin = checkpoints.load()
    step = 0 if begin is None else int(begin.state["step"])
    train(hvd.elastic.ObjectState(broadcast, hvd.rank, step=step))
"""


def said_lines(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines that the ranks of TRAINING have printed so far, the oldest first."""
    log = folder / "log"
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1:] == "\n"]
