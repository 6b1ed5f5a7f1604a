"""How many pods a job has, and how many ranks each of them."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import parse_hostfile, parse_hosts

_MOST_PODS = 100_000


@dataclass(frozen=True)
class Shape:
    """Pods that are alike.

    Attributes:
        pods: How many there are.
        least: With so many the job goes on; where that is fewer than `pods`, it is elastic.
        slots: Ranks of each.
    """

    pods: int
    least: int
    slots: int

    @property
    def elastic(self) -> bool:
        """Whether pods may be missing."""
        return self.least < self.pods


def shape_of(options: argparse.Namespace) -> Shape:
    """Returns the pods that the options describe: --nnodes, -H, or -np with --slots.

    Args:
        options: The parsed options.

    Raises:
        UsageError: They contradict each other, or no number of ranks is given.
    """
    if options.nnodes is not None:
        _refuse(options, "--nnodes", "num_proc", "hosts", "hostfile", "slots", "min_np", "max_np")
        match = re.fullmatch(r"(\d+)(?::(\d+))?", options.nnodes)
        least = int(match[1]) if match else 0
        return _checked(
            Shape(int(match[2] or least) if match else 0, least, _given(options.nproc_per_node, 1))
        )
    if options.nproc_per_node is not None:
        raise UsageError("--nproc-per-node needs --nnodes, as --nnodes 4")
    if options.hosts is not None or options.hostfile:
        _refuse(options, "-H and a host file", "slots", "min_np", "max_np")
        return _of_hosts(options)
    slots = _given(options.slots, 1)
    ranks = _given(options.max_np, options.num_proc)
    if ranks is None:
        raise UsageError(
            "say how many ranks the job has: -np 8 for 8 pods, -np 8 --slots 2 for 4 pods of 2 "
            "ranks each, or --nnodes 4 --nproc-per-node 2"
        )
    begin = _given(options.num_proc, ranks)
    least = _given(options.min_np, begin)
    if slots < 1:
        raise UsageError(f"--slots {slots}: a pod has 1 rank or more")
    if not least <= begin <= ranks:
        raise UsageError(
            f"-np {begin}, --min-np {least} and --max-np {ranks}: -np has to be between the others"
        )
    for flag, number in (("the ranks", ranks), ("--min-np", least)):
        if number % slots:
            raise UsageError(
                f"{flag} ({number}) have to fill pods of {slots} ranks (--slots): give a multiple"
            )
    return _checked(Shape(ranks // slots, least // slots, slots))


def _given(number: int | None, otherwise: int | None) -> Any:
    return otherwise if number is None else number


def _of_hosts(options: argparse.Namespace) -> Shape:
    try:
        text = options.hosts
        hosts = (
            parse_hosts(text)
            if text is not None
            else parse_hostfile(Path(options.hostfile).read_text(encoding="utf-8"))
        )
    except OSError as error:
        raise UsageError(f"the host file cannot be read: {error}") from None
    counts = sorted({slots for _, slots in hosts})
    if len(counts) != 1:
        raise UsageError(
            f"the hosts have {counts} slots, and pods of one job are alike: give all the same "
            "number, as -H a:2,b:2 (in a cluster their names have no meaning)"
        )
    total = len(hosts) * counts[0]
    if options.num_proc not in (None, total):
        raise UsageError(f"-np {options.num_proc}, and the hosts have {total} slots: leave out -np")
    return _checked(Shape(len(hosts), len(hosts), counts[0]))


def _refuse(options: argparse.Namespace, given: str, *names: str) -> None:
    flags = {"num_proc": "-np", "hosts": "-H"}
    for name in names:
        if getattr(options, name) is not None:
            flag = flags.get(name, "--" + name.replace("_", "-"))
            raise UsageError(f"{given} say the pods, and {flag}, too: leave out {flag}")


def _checked(shape: Shape) -> Shape:
    if not 1 <= shape.least <= shape.pods or shape.slots < 1:
        raise UsageError(
            f"{shape.pods} pods of {shape.slots} ranks, at least {shape.least} pods: these have to "
            "be numbers from 1 on, the least not above the most"
        )
    if shape.pods > _MOST_PODS:
        raise UsageError(f"{shape.pods} pods: an indexed Job has at most {_MOST_PODS}")
    return shape
