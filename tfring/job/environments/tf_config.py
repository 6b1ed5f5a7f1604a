"""TF_CONFIG, which MultiWorkerMirroredStrategy reads and many cluster managers set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tfring.job.environments.identity import Identity, IdentityError, Rendezvous

_SOURCE = "TF_CONFIG"
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:1234", "host1:1234"]}, "task": {"type": "worker", "index": 0}}'
)


def detect(environ: Mapping[str, str]) -> Identity | None:
    """Returns the identity in TF_CONFIG, or None if it names no cluster of workers."""
    text = environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise IdentityError(f"TF_CONFIG is not JSON ({error}); an example: {_EXAMPLE}") from None
    cluster = config.get("cluster") if isinstance(config, dict) else None
    if not cluster:
        return None
    return _identity(cluster, config.get("task"))


def _identity(cluster: Any, task: Any) -> Identity:
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise IdentityError(f"TF_CONFIG has a cluster but no task; an example: {_EXAMPLE}")
    chief = list(cluster.get("chief", [])) or list(cluster.get("master", []))
    members = chief + list(cluster.get("worker", []))
    kind, index = task.get("type"), task.get("index")
    if kind not in ("chief", "master", "worker"):
        raise IdentityError(
            f'TF_CONFIG makes this process a "{kind}": tfring uses no parameter servers, only '
            "workers (chief, master, worker)"
        )
    if not isinstance(index, int):
        raise IdentityError(f"TF_CONFIG's task has no index; an example: {_EXAMPLE}")
    rank = index + (len(chief) if kind == "worker" else 0)
    if not 0 <= rank < len(members):
        raise IdentityError(f"TF_CONFIG names {len(members)} workers; {kind} {index} is not one")
    if len(members) == 1:
        return Identity(source=_SOURCE, rank=0, size=1, rendezvous=Rendezvous.NONE)
    host, _, port = str(members[0]).rpartition(":")
    if not host or not port.isdigit():
        raise IdentityError(f'TF_CONFIG names "{members[0]}", which is not host:port')
    return Identity(
        source=_SOURCE,
        rank=rank,
        size=len(members),
        rendezvous=Rendezvous.TCP,
        address=host.strip("[]"),
        port=int(port),
        job_id="tf_config",
        public_seed=" ".join(str(m) for m in members),
        several_hosts=len({str(m).rpartition(":")[0] for m in members}) > 1,
    )
