"""Watches over an agent where no launcher does: on other hosts, and below other programs."""

from __future__ import annotations

import os
import select
import sys
import time

from tfring.launch.agents import protocol
from tfring.launch.agents.kernel import take_orphans
from tfring.launch.agents.leftovers import kill_orphans

_POLL_SECONDS = 0.02


def fork_agent(parent: int) -> int:
    """Forks; returns the guardian's process in the child, which is to be the agent.

    The parent is the guardian. When the agent has ended, it kills what is left below it, and ends.
    If its own parent ends first (0: it has none on this host), the guardian ends at once, upon
    which the agent ends its ranks.
    """
    guardian = os.getpid()
    agent = os.fork()
    if agent == 0:
        return guardian
    take_orphans()
    wake = protocol.set_up_signals(parent)
    while True:
        if parent and os.getppid() != parent:
            sys.exit(0)
        done, status = os.waitpid(agent, os.WNOHANG)
        if done:
            break
        select.select([wake], [], [])
        os.read(wake, 4096)
    while kill_orphans(()):
        time.sleep(_POLL_SECONDS)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)
