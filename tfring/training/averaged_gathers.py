"""Names gradients that a gather has averaged over the ranks and a reduction averages once more.

What goes through such a gather counts 1/N of what one process gives, which Adam hides and a loss
does not show. Found when a step is traced, by the search in the graph of double_reduction; in eager
mode a value does not say what it was computed from. Programs without a gather of that convention
(tfring.ops.gradients) pay nothing.
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
    """Says so once on rank 0 if gradients that are about to be averaged are of this kind.

    Args:
        gradients: None where there is none.
        variables: what they belong to.
        members: the process set over which they are about to be averaged.
    """
    if not conventions.averaging or topology.rank() != 0 or topology.size() == 1:
        return
    set_id = process_sets.checked_id(members)
    for gradient, variable in zip(gradients, variables, strict=True):
        for name, over in collectives_behind(symbolic_parts([gradient])):
            if over == set_id and name in conventions.averaging:
                _warn(variable_name(variable), name.removeprefix("grad.").partition("#")[0])
                return


@functools.lru_cache(maxsize=64)  # once for each
def _warn(variable: str, call: str) -> None:
    size = topology.size()
    _log.warning(
        f"Rank 0 averages the gradient of {variable!r} over {size} ranks, and a part of it was "
        f"averaged before by the gradient of {call!r}: that part counts 1/{size} of what one "
        'process gives.\nWrite gradient="sum" in that call of allgather or broadcast; it is the '
        "default of `import tfring`. An example: tfring help recipes embeddings"
    )
