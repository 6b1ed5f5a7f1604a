"""Process sets: groups of ranks that run collectives together, beside the set of all ranks.

Sets may overlap, and collectives of several sets may run at the same time.
"""

from tfring.runtime.process_sets.process_set import ProcessSet, global_process_set
from tfring.runtime.process_sets.process_set import checked_id as checked_id
from tfring.runtime.process_sets.registry import (
    add_process_set,
    get_process_set_ids_and_ranks,
    registered,
    remove_process_set,
)
from tfring.runtime.process_sets.registry import generation as generation

# `checked_id` and `generation` are for tfring's own modules.
__all__ = [
    "ProcessSet",
    "add_process_set",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "registered",
    "remove_process_set",
]
