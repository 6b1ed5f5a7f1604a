"""The hosts that a scheduler has given to the job that this process runs in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.lists import expand
from tfring.runtime.ssh import check_host

SLURM = "Slurm"


@dataclass(frozen=True)
class Allocation:
    """Hosts with their slots, and which scheduler gave them."""

    scheduler: str
    hosts: list[tuple[str, int]]

    @property
    def slots(self) -> int:
        """The number of slots of all hosts."""
        return sum(slots for _, slots in self.hosts)


def find_allocation(environ: Mapping[str, str]) -> Allocation | None:
    """Returns the hosts of a Slurm, PBS, LSF or SGE job; None outside of one.

    UsageError: what the scheduler says cannot be read.
    """
    for scheduler, read in _READERS.items():
        try:
            hosts = read(environ)
            for host, _ in hosts:
                check_host(host)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            raise UsageError(
                f"the hosts of this {scheduler} job cannot be read: {error}; name them with -H"
            ) from None
        if hosts:
            return Allocation(scheduler, hosts)
    return None


def _slurm(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """SLURM_JOB_NODELIST is ``a[01-03],b``; SLURM_TASKS_PER_NODE is ``2(x3),1``, in its order."""
    nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    if not nodes:
        return []
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and environ.get("SLURM_PROCID"):
        raise UsageError(
            f"srun has started this tfring run as one of {tasks} tasks, and each would start all "
            "ranks: leave out srun, or leave out tfring run"
        )
    hosts = expand(nodes)
    text = environ.get("SLURM_TASKS_PER_NODE", "") or environ.get("SLURM_NTASKS_PER_NODE", "")
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:\(x(\d{1,9})\))?\s*", part)
        if found is None:
            raise UsageError(
                f'SLURM_TASKS_PER_NODE is "{text[:80]}", not numbers of tasks as 2(x3),1: ask '
                "Slurm for tasks (--ntasks-per-node), or name the hosts with -H"
            )
        counts += [int(found[1])] * min(int(found[2] or 1), len(hosts))
    if len(counts) == 1:
        counts *= len(hosts)  # the same on all, as SLURM_NTASKS_PER_NODE says it
    if len(counts) != len(hosts):
        raise UsageError(
            f'Slurm names {len(hosts)} hosts ("{nodes}") and the tasks of {len(counts)} '
            f'("{text}"): name the hosts with -H'
        )
    return [(host, count) for host, count in zip(hosts, counts, strict=True) if count]


def _pbs(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """PBS_NODEFILE has a line with the host for each slot."""
    return _a_line_per_slot(environ.get("PBS_NODEFILE", ""))


def _lsf(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """LSB_DJOB_HOSTFILE has a line for each slot; LSB_MCPU_HOSTS is ``a 4 b 2``."""
    if file := environ.get("LSB_DJOB_HOSTFILE", ""):
        return _a_line_per_slot(file)
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    names, counts = words[::2], words[1::2]
    if len(names) != len(counts) or not all(count.isdecimal() for count in counts):
        raise UsageError(
            f'LSB_MCPU_HOSTS is "{" ".join(words)}", not hosts and their slots as "a 4 b 2": name '
            "the hosts with -H"
        )
    return [(name, int(count)) for name, count in zip(names, counts, strict=True) if int(count)]


def _sge(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """PE_HOSTFILE has lines ``host slots queue processors``."""
    if not (file := environ.get("PE_HOSTFILE", "")):
        return []
    slots: Counter[str] = Counter()
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words:
            continue
        if len(words) < 2 or not words[1].isdecimal():
            raise UsageError(
                f'a line of PE_HOSTFILE is "{line}", not "host slots queue processors": name the '
                "hosts with -H"
            )
        slots[words[0]] += int(words[1])
    return list(slots.items())


def _a_line_per_slot(file: str) -> list[tuple[str, int]]:
    if not file:
        return []
    return list(Counter(Path(file).read_text(encoding="utf-8").split()).items())


_READERS: dict[str, Callable[[Mapping[str, str]], list[tuple[str, int]]]] = {
    SLURM: _slurm,
    "PBS": _pbs,
    "LSF": _lsf,
    "SGE": _sge,
}
