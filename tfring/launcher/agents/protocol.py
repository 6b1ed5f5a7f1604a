"""What the launcher, the agent of a host and the agents of its ranks send each other.

The launcher writes lines ``WORD RANK REST`` to the agent of a host:

- ``start RANK JOB``: JOB is the JSON of `agent.py`.
- ``signal RANK NUMBER``: passes a signal on to the rank's process group.
- ``lease 0 SECONDS``: the launcher is there, and says so at least once in so many seconds; if it
  does not, it counts as gone. 0: it says so no more, and counts as gone when the connection ends.
- ``report 0 JSON``: the exit report to finish if the launcher is gone without ``bye``.
- ``end 0``: ends all ranks, and agents that do not react, as if the connection had ended.
- ``bye 0``: the launcher will end the connection, and has written everything itself.

The agent of a host writes the line `GREETING` and then frames: a letter, the rank, the length of
the data, the data. o is output; e error output; s what is known of a rank that has started, as
JSON; x how a rank ended, as JSON; k nothing, a sign of life.

The agents of ranks get the line of their job and lines ``signal NUMBER``. They write lines of JSON
to a pipe of their own: `pid` and `cores` when the rank has started, `code` and `oom` at its end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from pathlib import Path

GREETING = b"tfring-host-agent 2\n"
FRAME = struct.Struct(">cII")
# How often both ends of a connection between hosts give a sign of life.
KEEPALIVE_SECONDS = 1.0

_PR_SET_PDEATHSIG = 1
# An agent gets this signal when the process that started it has ended. No scheduler sends it.
PARENT_DIED = signal.SIGRTMIN + 5
# Schedulers send these to all processes of a job. An agent lives as long as its rank needs it.
_NOT_FOR_AGENTS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
    signal.SIGCHLD,
    PARENT_DIED,
)

# The package's files are all that an agent needs besides the standard library: it starts in
# milliseconds, and nothing of the rank's environment can break it.
_START = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from tfring.launcher.agents import {0}; {0}.main(int(sys.argv[2]))"
)
_ROOT = str(Path(__file__).absolute().parents[3])


def agent_command(module: str, parent: int) -> list[str]:
    """Returns the command line of an agent.

    Args:
        module: ``agent`` or ``host_agent``.
        parent: The process on this host without which the agent has to end; 0 if there is none.
    """
    return [sys.executable, "-I", "-S", "-c", _START.format(module), _ROOT, str(parent)]


def set_up_signals(parent: int) -> int:
    """Has the signals of an agent wake it up instead of ending it.

    Args:
        parent: Of agent_command().

    Returns:
        A descriptor that never blocks, from which the numbers of the signals are read.
    """
    wake, wake_write = os.pipe()
    for fd in (wake, wake_write):
        os.set_blocking(fd, False)
    for number in _NOT_FOR_AGENTS:
        # With a handler, not ignored: the rank starts with what the agent was started with.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    if parent:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(PARENT_DIED), 0, 0, 0)
        if os.getppid() != parent:
            os.write(wake_write, bytes([PARENT_DIED]))
    return wake
