"""What the launcher and the agent of a host send each other.

The launcher writes lines ``WORD RANK REST``:

- ``start RANK JOB``: starts a rank. JOB is JSON: `argv`, `env` (beside the agent's own variables),
  `cwd`; `bind_to`, `local_rank` and `local_size`; and for rank 0 `listen`, with the `interface` of
  the address at which ranks meet, or a host `towards` which it has to lead.
- ``signal RANK NUMBER``: sends a signal to the rank's process group.
- ``lease 0 SECONDS``: the launcher lives, and sends this at least once in SECONDS. If it does not,
  the agent regards it as gone. With 0 it sends no more of them, and is gone when the connection
  ends.
- ``grace 0 SECONDS``: seconds between SIGTERM and SIGKILL for ranks when the launcher is gone.
- ``end 0``: kills all ranks, and ends the agent.

The agent writes the line `GREETING` and then frames: a letter, the rank, the length of the data,
the data. o is output; e error output; s what is known of a rank that starts, as JSON: for rank 0
the `rendezvous` at which ranks meet, then `pid` and `cores`; x how it ended, as JSON: the same,
`code`, `oom`, and whether the `kernel_log` could be read for that; k nothing, a sign of life.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from pathlib import Path

from tfring.launch.agents.processes import end_with_parent

GREETING = b"tfring-host-agent 4\n"
FRAME = struct.Struct(">cII")
# How often both ends of a connection between hosts give a sign of life.
KEEPALIVE_SECONDS = 1.0

# Schedulers send these to all processes of a job. An agent lives as long as its ranks need it. The
# kernel sends the last two when a child ends, and when the parent does.
_NOT_FOR_AGENTS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
    signal.SIGCHLD,
    signal.SIGCONT,
)
_NEEDED = (signal.SIGCHLD, signal.SIGCONT)

# The package's files are all that an agent needs besides the standard library: it starts in
# milliseconds, and nothing of the rank's environment can break it.
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from tfring.launch.agents import host_agent; host_agent.main(*map(int, sys.argv[2:]))"
)
_ROOT = str(Path(__file__).absolute().parents[3])


def agent_command(parent: int, *, guarded: bool) -> list[str]:
    """Returns the command line of the agent of a host.

    The agent ends when the process `parent` of its host does; 0 if there is none. Without a
    guardian, the process that starts the agent looks after what it leaves.
    """
    numbers = [str(parent), str(int(guarded))]
    return [sys.executable, "-I", "-S", "-c", _START, _ROOT, *numbers]


def set_up_signals(parent: int) -> int:
    """Has the signals of an agent, and the end of its parent, wake it up instead of ending it.

    Returns a descriptor that never blocks, from which to read the numbers of the signals.
    """
    wake, wake_write = os.pipe()
    for fd in (wake, wake_write):
        os.set_blocking(fd, False)
    for number in _NOT_FOR_AGENTS:
        # With a handler, not ignored: the rank starts with what the agent was started with.
        if signal.getsignal(number) is not signal.SIG_IGN or number in _NEEDED:
            signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    if parent:
        # SIGCONT also wakes an agent that was stopped. Who gets it looks for its parent.
        end_with_parent(parent, signal.SIGCONT)
    return wake
