"""How many GPUs a Slurm job has on each of its nodes, where its variables do not say it."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Mapping

from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.lists import expand

_log = logging.getLogger("tfring")
_SECONDS = 60.0  # for the answer of a busy slurmctld

# Set where GPUs were asked for otherwise than for each node (--gres, --gpus-per-node): of these a
# step gets all on its node without being told how many.
_NOT_BY_NODE = (
    "SLURM_GPUS",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_TRES_PER_TASK",
    "SLURM_NTASKS_PER_GPU",
)
_NODES = re.compile(r"\bNodes=(\S+) .*\bGRES=(\S*)")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)(?=,|$)")


def find_gpus(environ: Mapping[str, str]) -> dict[str, int]:
    """Returns the GPUs of the surrounding Slurm job, by node; {} if steps need no number."""
    job = environ.get("SLURM_JOB_ID")
    if not job or not any(environ.get(name) for name in _NOT_BY_NODE):
        return {}
    try:
        shown = subprocess.run(
            ["scontrol", "--details", "show", "job", job],
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
        ).stdout
        return read_gpus(shown)
    except (OSError, subprocess.SubprocessError, UsageError) as error:
        _log.warning(
            "scontrol does not say which GPUs job %s has on which node (%s), and ranks on other "
            "nodes may see fewer: ask for GPUs with --gpus-per-node",
            job,
            error,
        )
        return {}


def read_gpus(shown: str) -> dict[str, int]:
    """Returns the GPUs by node that ``scontrol --details show job`` names.

    It prints ``Nodes=h[0-1] CPU_IDs=0-3 Mem=0 GRES=gpu:a100:2(IDX:0-1)``.
    """
    found: dict[str, int] = {}
    for nodes, devices in _NODES.findall(shown):
        count = sum(map(int, _GPUS.findall(re.sub(r"\([^)]*\)", "", devices))))
        found |= dict.fromkeys(expand(nodes), count)
    return found
