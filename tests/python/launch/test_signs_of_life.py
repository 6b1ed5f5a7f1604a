"""The rate of an agent's heartbeats."""

from __future__ import annotations

import subprocess
import time

from tfring.launch.agents.protocol import FRAME, GREETING, KEEPALIVE_SECONDS, agent_command


def test_an_idle_agent_rests_between_signs_of_life():
    """They were once sent as fast as the connection took them."""
    agent = subprocess.Popen(
        agent_command(0, guarded=True), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        agent.stdin.write(b"lease 0 60\n")
        assert agent.stdout.read(len(GREETING)) == GREETING
        times = []
        while len(times) < 5:
            letter, _, length = FRAME.unpack(agent.stdout.read(FRAME.size))
            assert (letter, length) == (b"k", 0)
            times.append(time.monotonic())
        # A slow machine makes it longer, never shorter.
        assert times[-1] - times[0] >= KEEPALIVE_SECONDS
    finally:
        agent.stdin.close()
        agent.wait()
        agent.stdout.close()
