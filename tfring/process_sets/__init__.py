"""Process sets: groups of ranks that run collectives together, beside the set of all ranks.

Sets may overlap, and collectives of several sets may run at the same time.
"""

from tfring.process_sets.process_set import ProcessSet, checked_id, global_process_set
from tfring.process_sets.registry import (
    add_process_set,
    generation,
    get_process_set_ids_and_ranks,
    registered,
    remove_process_set,
)

__all__ = [
    "ProcessSet",
    "add_process_set",
    "checked_id",
    "generation",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "registered",
    "remove_process_set",
]
