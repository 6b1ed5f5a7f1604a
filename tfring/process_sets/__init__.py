"""Process sets: groups of ranks that run collectives together, beside the set of all ranks."""

from tfring.process_sets.process_set import (
    ProcessSet,
    add_process_set,
    checked_id,
    counting_key,
    forget_all,
    generation,
    get_process_set_ids_and_ranks,
    global_process_set,
    register_at_init,
    registered,
    remove_process_set,
)

__all__ = [
    "ProcessSet",
    "add_process_set",
    "checked_id",
    "counting_key",
    "forget_all",
    "generation",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "register_at_init",
    "registered",
    "remove_process_set",
]
