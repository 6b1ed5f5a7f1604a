"""Which peers can be measured here, and what to do about those that cannot. Loads none of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from tfring.bench.options import ALL_PEERS, PEERS


def missing(name: str, under_mpi: bool) -> str | None:
    """Returns why a peer cannot be measured, with what to do; None if it can.

    Args:
        name: Of the peer.
        under_mpi: Whether MPI has started this job, and the ranks have met through it.
    """
    if name == "mpi" and importlib.util.find_spec("mpi4py") is None:
        return "mpi needs mpi4py: pip install 'tfring[mpi]'"
    if name == "mpi" and not under_mpi:
        return (
            "mpi can be measured only in a job that MPI has started: "
            "mpirun -np 2 tfring bench --against mpi"
        )
    if name == "gloo" and importlib.util.find_spec("torch") is None:
        return "gloo needs PyTorch: pip install torch"
    return None


def chosen_peers(wanted: Sequence[str], under_mpi: bool) -> tuple[list[str], list[str]]:
    """Returns the peers to measure, and for "all" why the others are not.

    Raises:
        ValueError: One that was named cannot be measured.
    """
    everything = tuple(wanted) == (ALL_PEERS,)
    names = list(PEERS if everything else wanted)
    reasons = {name: missing(name, under_mpi) for name in names}
    left_out = [why for why in reasons.values() if why is not None]
    if left_out and not everything:
        raise ValueError(f"--against: {'; '.join(left_out)}")
    return [name for name in names if reasons[name] is None], left_out
