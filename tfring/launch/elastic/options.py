"""The options of elastic jobs: those of horovodrun, and ours."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from tfring.launch.hosts.allocations import find_allocation
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import assign_slots, parse_hostfile, parse_hosts

ELASTIC_SECONDS = 600.0
# A job without a limit has as many workers as its hosts have slots.
NO_LIMIT = 1 << 20


@dataclass(frozen=True)
class ElasticOptions:
    """How many workers an elastic job has, and where. Times are in seconds."""

    np: int  # the first generation waits for so many, for as long as start_timeout
    min_np: int
    max_np: int
    spares: int = 0
    hosts: tuple[tuple[str, int], ...] = ()  # where no script says them
    script: str | None = None  # a command for the shell that prints the hosts
    slots: int | None = None  # of hosts of which the script says none
    timeout: float = ELASTIC_SECONDS  # for which there may be fewer than min_np
    reset_limit: int = -1
    cooldown: tuple[float, float] | None = None
    blacklist: bool = False  # the first failure bars a host for the rest of the job
    only_failures_count: bool = False  # for the reset limit; else each change of the ranks


def add_elastic_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of elastic jobs to the parser of ``tfring run``.

    Args:
        parser: The parser.
    """
    add = parser.add_argument_group(
        "elastic jobs", "with --min-np, --max-np, --host-discovery-script or --spares"
    ).add_argument
    add("--min-np", "--min-num-proc", type=int, metavar="N", help="with fewer ranks it waits")
    add("--max-np", "--max-num-proc", type=int, metavar="N", help="it never has more ranks")
    add("--host-discovery-script", metavar="COMMAND", help="prints the hosts as lines host:slots")
    add(
        "--slots",
        "--slots-per-host",
        type=int,
        metavar="N",
        help="slots of hosts of which the script says none",
    )
    add("--spares", type=int, metavar="N", help="workers beyond --max-np that wait, ready to join")
    add(
        "--elastic-timeout",
        type=float,
        metavar="SECONDS",
        help=f"how long it waits for --min-np ranks (default {ELASTIC_SECONDS:g})",
    )
    add("--reset-limit", type=int, metavar="N", help="the ranks may change so many times")
    add(
        "--blacklist-cooldown-range",
        type=float,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="after a failure a host is not used for so many seconds, more each time",
    )
    add(
        "--blacklist-hosts",
        action="store_true",
        default=None,
        help="after a failure a host is not used again, as in Horovod",
    )


_MAKES_ELASTIC = ("min_np", "max_np", "host_discovery_script", "spares")
_ONLY_ELASTIC = (
    "slots",
    "elastic_timeout",
    "reset_limit",
    "blacklist_cooldown_range",
    "blacklist_hosts",
)


def elastic_options(options: argparse.Namespace) -> ElasticOptions | None:
    """Returns what the parsed options say of an elastic job; None: it is not elastic.

    Args:
        options: The parsed options.

    Raises:
        UsageError: They contradict each other.
    """
    if not any(getattr(options, name) is not None for name in _MAKES_ELASTIC):
        for name in _ONLY_ELASTIC:
            if getattr(options, name) is not None:
                raise UsageError(
                    f"{_flag(name)} is for elastic jobs: give --min-np, --max-np or "
                    f"--host-discovery-script, too, or leave {_flag(name)} out"
                )
        return None
    if options.max_restarts is not None:
        raise UsageError("--max-restarts: in an elastic job --reset-limit says it, give that one")
    if options.compare:
        raise UsageError("--compare compares jobs whose ranks stay: leave out the elastic options")
    _check_numbers(options)
    script = options.host_discovery_script
    hosts = () if script else _fixed_hosts(options)
    np, min_np, max_np = _counts(options, sum(slots for _, slots in hosts) if hosts else None)
    cooldown = options.blacklist_cooldown_range
    return ElasticOptions(
        np=np,
        min_np=min_np,
        max_np=max_np,
        spares=options.spares or 0,
        hosts=hosts or (() if script else (("localhost", _own_slots(options, max_np)),)),
        script=_script(options) if script else None,
        slots=options.slots,
        timeout=ELASTIC_SECONDS if options.elastic_timeout is None else options.elastic_timeout,
        reset_limit=-1 if options.reset_limit is None else options.reset_limit,
        cooldown=None if cooldown is None else (cooldown[0], cooldown[1]),
        blacklist=bool(options.blacklist_hosts),
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_numbers(options: argparse.Namespace) -> None:
    least = {"num_proc": 1, "min_np": 1, "max_np": 1, "slots": 1, "spares": 0, "reset_limit": 0}
    for name, low in least.items():
        value = getattr(options, name)
        if value is not None and value < low:
            raise UsageError(f"{_flag(name)} {value}: it has to be {low} or more")
    if options.elastic_timeout is not None and options.elastic_timeout <= 0:
        raise UsageError(f"--elastic-timeout {options.elastic_timeout:g}: it has to be above 0")
    cooldown = options.blacklist_cooldown_range
    if cooldown is not None and not 0 < cooldown[0] <= cooldown[1]:
        raise UsageError(
            f"--blacklist-cooldown-range {cooldown[0]:g} {cooldown[1]:g}: these have to be the "
            "shortest and the longest time in seconds, as 10 100"
        )
    if cooldown is not None and options.blacklist_hosts:
        raise UsageError(
            "with --blacklist-hosts no host comes back after a failure, and with "
            "--blacklist-cooldown-range each does: leave one of them out"
        )


def _counts(options: argparse.Namespace, total: int | None) -> tuple[int, int, int]:
    """Returns np, min_np and max_np.

    Args:
        options: The parsed options.
        total: The slots of all hosts, if these are known.
    """
    np = options.num_proc
    if np is None and total is not None:  # all that the hosts have
        all_but_spares = max(1, total - (options.spares or 0))
        np = max(min(all_but_spares, options.max_np or NO_LIMIT), options.min_np or 1)
    np = np or options.min_np or options.max_np
    if np is None:
        raise UsageError("say with how many ranks to begin: -np 4, and --min-np 2 for the least")
    min_np = options.min_np or np
    max_np = options.max_np or (np if options.spares else NO_LIMIT)
    if not min_np <= np <= max_np:
        most = "" if max_np == NO_LIMIT else f" and --max-np {max_np}"
        raise UsageError(
            f"-np {np} has to be between --min-np {min_np}{most}: the job begins with -np ranks"
        )
    if total is not None and np > total:
        given = "--min-np" if options.num_proc is None else "-np"
        raise UsageError(
            f"{given} {np} were asked for, and the hosts have {total} slots in all: name more "
            "hosts, or begin with fewer"
        )
    return np, min_np, max_np


def _own_slots(options: argparse.Namespace, max_np: int) -> int:
    """The slots of this host, where no hosts are named."""
    if options.slots is not None:
        return int(options.slots)
    most = max_np if max_np != NO_LIMIT else options.num_proc or options.min_np
    return int(most) + (options.spares or 0)


def _fixed_hosts(options: argparse.Namespace) -> tuple[tuple[str, int], ...]:
    """The hosts of -H, of a host file, or of the scheduler's job; empty: this one."""
    found: list[tuple[str, int]] = []
    if options.hosts is not None and options.hostfile:
        raise UsageError("a list of hosts (-H) and a host file exclude each other: give one")
    if options.hosts is not None:
        found = parse_hosts(options.hosts)
    elif options.hostfile:
        try:
            found = parse_hostfile(Path(options.hostfile).read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"the host file cannot be read: {error}") from None
    elif options.num_proc is None:
        allocation = find_allocation(os.environ)
        found = [] if allocation is None else allocation.hosts
    if found and options.slots is not None:
        raise UsageError(
            "--slots is for hosts that a --host-discovery-script names: give the slots of other "
            "hosts with them, as -H node1:4"
        )
    if found:
        assign_slots(None, found)  # refuses a host that is named twice
    return tuple(found)


def _script(options: argparse.Namespace) -> str:
    """The command of the discovery script; a file is run also if the path does not name it."""
    if options.hosts is not None or options.hostfile:
        raise UsageError(
            "--host-discovery-script says the hosts, and -H or a host file, too: give one of them"
        )
    script = str(options.host_discovery_script)
    path = Path(script)
    if not path.is_file():
        return script
    if not os.access(path, os.X_OK):
        raise UsageError(f"--host-discovery-script {script} cannot be run: chmod +x {script}")
    return shlex.quote(str(path.absolute()))
