"""Float32 allreduce by the executor alone between network namespaces as hosts. Needs root.

    python -m benchmarks.hosts --hosts 2 --per-host 4 --rate 1gbit --bytes 67108864

The settings take turns, one process each. A row gives the median time in milliseconds of the
slowest rank; the share of raw TCP's goodput, measured at the same time between the same hosts,
for the least bytes that a host has to send, 2 (H-1)/H of the size; and the bytes that it sent,
with all headers, as a multiple of those.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections import defaultdict

from benchmarks import common
from benchmarks.hosts.network import Network, network, sockets
from tfring.runtime.settings.environment import native_values

PROGRAM = "build/benchmarks/executor/tfring_executor_benchmark"
TRIED = ["flat:HIERARCHICAL_ALLREDUCE=0", "auto:", "hierarchical:HIERARCHICAL_ALLREDUCE=1"]
WARMUP = 5  # rounds that the program does not print


def _native(settings: str) -> list[str]:
    """Returns the settings of "NAME=VALUE,..." as the runtime takes them."""
    texts = dict(setting.split("=", 1) for setting in settings.split(",") if setting)
    return [f"{name}={value}" for name, value in native_values(texts).items()]


def milliseconds(made: Network, host_of: list[int], command: list[str]) -> list[float]:
    """Returns the times of the rounds of one process."""
    with contextlib.ExitStack() as ends:
        named = [f"hosts={','.join(map(str, host_of))}"]
        passed = []
        for one, other, here, there in sockets(made, host_of):
            ends.enter_context(here)
            ends.enter_context(there)
            passed += [here.fileno(), there.fileno()]
            named.append(f"socket={one}:{other}:{here.fileno()}:{there.fileno()}")
        done = subprocess.run(
            [*command, *named], pass_fds=passed, stdout=subprocess.PIPE, text=True, check=True
        )
    return [int(line.split()[0]) / 1e6 for line in done.stdout.splitlines()]


def main() -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=4, help="ranks on each")
    parser.add_argument("--in-turns", action="store_true", help="ranks go round the hosts")
    parser.add_argument("--rate", default="1gbit", help="of each link; none: no limit")
    parser.add_argument("--flow-rate", default="none", help="of each connection; none: no limit")
    parser.add_argument("--control", default="cubic", help="TCP's congestion control")
    parser.add_argument("--bytes", type=int, action="append", help="a size; more than one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=3, help="processes of each")
    parser.add_argument("--program", default=PROGRAM)
    parser.add_argument("--try", dest="tried", action="append", help="NAME:SETTING=VALUE,...")
    arguments = parser.parse_args()
    ranks = arguments.hosts * arguments.per_host
    host_of = [
        rank % arguments.hosts if arguments.in_turns else rank // arguments.per_host
        for rank in range(ranks)
    ]
    report = common.Report("hosts", ranks)
    with network(arguments.hosts, arguments.rate, arguments.control, arguments.flow_rate) as made:
        for size in arguments.bytes or [64 << 20]:
            report.rows += rows(made, host_of, size, arguments)
    return report.finish(arguments.json)


def rows(
    made: Network, host_of: list[int], size: int, arguments: argparse.Namespace
) -> list[dict[str, object]]:
    """Returns a row for each setting with one size."""
    times: dict[str, list[float]] = defaultdict(list)
    sent: dict[str, list[float]] = defaultdict(list)
    goodputs = []
    least = 2 * (arguments.hosts - 1) / arguments.hosts * size
    for _ in range(arguments.turns):
        goodputs.append(made.goodput(max(size, 4 << 20)))
        for tried in arguments.tried or TRIED:
            name, _, settings = tried.partition(":")
            command = [arguments.program, str(len(host_of)), str(size), str(arguments.rounds)]
            before = made.bytes_sent()
            times[name] += milliseconds(made, host_of, [*command, *_native(settings)])
            most = max(b - a for a, b in zip(before, made.bytes_sent(), strict=True))
            sent[name].append(most / (arguments.rounds + WARMUP) / least)
    goodput = statistics.median(goodputs)
    return [
        {
            "bytes": size,
            "tried": name,
            "ms": statistics.median(found),
            "of_goodput": least / goodput / (statistics.median(found) / 1e3),
            "of_least_bytes": statistics.median(sent[name]),
            "raw_MB_s": goodput / 1e6,
        }
        for name, found in times.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
