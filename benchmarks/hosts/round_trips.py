"""Counts the round trips of an allreduce by its time on a slow network. Needs root.

    python -m benchmarks.hosts.round_trips --hosts 2 --hosts 4 --hosts 8 --delay 0.02

Every packet between the hosts, which are network namespaces with one rank each, takes the delay. A
row gives the time of the slowest rank in round trips, twice the delay: the median over the calls
and the minimum, in which nothing else delays a rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys

from benchmarks import common
from benchmarks.hosts.delays import delayed_network
from benchmarks.hosts.network import Network
from tfring.runtime.settings.table import SETTINGS

TRIED = ["unlocked:", "locked:LOCK_SCHEDULE=1"]
WARMUP = 3  # calls, in which the ranks agree on a plan and lock the schedule
RANK = """
import json, sys, time
import numpy as np
from tfring import world
from tfring.runtime._native import core

world.init()
data = np.ones(max(1, int(sys.argv[1]) // 4), np.float32)
seconds = []
for _ in range(int(sys.argv[2])):
    begin = time.monotonic()
    total = core.allreduce(data, name="x", op=1)
    seconds.append(time.monotonic() - begin)
    assert total[0] == core.size()
print(json.dumps(seconds), flush=True)
world.shutdown()
"""


def start(
    made: Network, host: int, hosts: int, words: list[str], settings: list[str]
) -> subprocess.Popen[str]:
    """Starts the rank of a host, with settings "NAME=VALUE"."""
    variables = {
        "RANK": str(host),
        "SIZE": str(hosts),
        "RENDEZVOUS_ADDR": made.address(0),
        "RENDEZVOUS_PORT": "29571",
        "SECRET": "only-for-this-benchmark-0123456789",
        **dict(setting.split("=", 1) for setting in settings),
    }
    named = {SETTINGS[name].variable: value for name, value in variables.items()}
    into = ["nsenter", f"--net=/run/netns/{made.space(host)}", "unshare", "--uts", "sh", "-c"]
    name_host = 'hostname "$0" 2>/dev/null || echo "$0" > /proc/sys/kernel/hostname; exec "$@"'
    return subprocess.Popen(
        [*into, name_host, f"h{host}", sys.executable, "-c", RANK, *words],
        stdout=subprocess.PIPE,
        env={**os.environ, **named},
        text=True,
    )


def round_trips(
    made: Network, hosts: int, settings: list[str], arguments: argparse.Namespace
) -> list[float]:
    """Returns the round trips of each call on the slowest rank, without the first calls."""
    words = [str(arguments.bytes), str(arguments.rounds + WARMUP)]
    ranks = [start(made, host, hosts, words, settings) for host in range(hosts)]
    try:
        found = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    slowest = [max(of_ranks) for of_ranks in zip(*found, strict=True)]
    return [seconds / (2 * arguments.delay) for seconds in slowest[WARMUP:]]


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--hosts", type=int, action="append", help="a number; more than one")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds, one way")
    parser.add_argument("--bytes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--try", dest="tried", action="append", help="NAME:SETTING=VALUE,...")
    arguments = parser.parse_args()
    report = common.Report("round_trips", 1)
    for hosts in arguments.hosts or [2, 4, 8]:
        with delayed_network(hosts, arguments.delay) as made:
            for tried in arguments.tried or TRIED:
                name, _, settings = tried.partition(":")
                given = settings.split(",") if settings else []
                found = round_trips(made, hosts, given, arguments)
                report.rows.append(
                    {
                        "hosts": hosts,
                        "tried": name,
                        "median": statistics.median(found),
                        "least": min(found),
                    }
                )
    return report.finish(arguments.json)


if __name__ == "__main__":
    sys.exit(main())
