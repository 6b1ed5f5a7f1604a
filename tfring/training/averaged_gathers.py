"""Warns about gradients that a gather has averaged and a reduction averages again.

The part behind the gather then counts 1/N of its value in one process. Adam hides this, and a loss
does not show it. The search of double_reduction finds it when a step is traced. In eager mode a
value does not tell what it was computed from. Only gathers with this convention
(tfring.ops.gradients) cost the search.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from tfring.ops import gradients as conventions
from tfring.runtime import process_sets, topology
from tfring.training.double_reduction import symbolic_parts
from tfring.training.graph_search import collectives_behind
from tfring.training.value_names import variable_name

_log = logging.getLogger("tfring")


def warn(gradients: Sequence[Any], variables: Sequence[Any], members: Any) -> None:
    """Warns once, on rank 0, if gradients would be averaged twice.

    Args:
        gradients: what is about to be averaged, None where there is none.
        variables: one per gradient.
        members: the process set to average over.
    """
    if not conventions.averaging or topology.rank() != 0 or topology.size() == 1:
        return
    set_id = process_sets.checked_id(members)
    for gradient, variable in zip(gradients, variables, strict=True):
        for name, over in collectives_behind(symbolic_parts([gradient])):
            if over == set_id and name in conventions.averaging:
                _warn(variable_name(variable), name.removeprefix("grad.").partition("#")[0])
                return


@functools.lru_cache(maxsize=64)
def _warn(variable: str, call: str) -> None:
    size = topology.size()
    _log.warning(
        f"Rank 0 averages the gradient of {variable!r} over {size} ranks. The gradient of "
        f"{call!r} has already averaged a part of it, so that part counts 1/{size} of its value "
        "in one process.\n"
        'Write gradient="sum" in that call of allgather or broadcast; it is the default of '
        "`import tfring`. For an example, run: tfring help recipes embeddings"
    )
