"""tfring: synchronous data-parallel training for TensorFlow 2 and Keras 3, on many processes.

    import tfring as hvd
    hvd.init()
    tape = hvd.DistributedGradientTape(tape)

The names are Horovod's. They are loaded when they are first used: importing tfring imports neither
TensorFlow nor the compiled runtime.
"""

from __future__ import annotations

import importlib
from typing import Any

from tfring.compat.missing_names import missing_attribute
from tfring.ops.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from tfring.version import __version__

_HOME = {
    "tfring.collectives.allgather": ["allgather", "grouped_allgather"],
    "tfring.collectives.allreduce": ["allreduce", "grouped_allreduce"],
    "tfring.collectives.alltoall": ["alltoall"],
    "tfring.collectives.broadcast": ["broadcast"],
    "tfring.collectives.compression": ["Compression", "Compressor"],
    "tfring.collectives.objects": ["allgather_object", "broadcast_object", "broadcast_object_fn"],
    "tfring.collectives.reducescatter": ["grouped_reducescatter", "reducescatter"],
    "tfring.collectives.rooted": ["gather", "reduce", "scatter"],
    "tfring.collectives.send_recv": ["recv", "send"],
    "tfring.collectives.sync": ["join"],
    "tfring.collectives.variables": ["broadcast_", "broadcast_variables"],
    "tfring.compat.helpers": ["check_num_rank_power_of_2", "gpu_available", "split_list"],
    "tfring.compat.tf1": ["BroadcastGlobalVariablesHook", "broadcast_global_variables"],
    "tfring.keras": ["callbacks"],
    "tfring.keras.horovod_tensorflow": ["DistributedOptimizer"],
    "tfring.keras.sync_batch_norm": ["SyncBatchNormalization"],
    "tfring.launcher.function": ["run"],
    "tfring.ops.arguments": ["handle_average_backwards_compatibility"],
    "tfring.ops.topology_ops": [
        "cross_rank_op",
        "cross_size_op",
        "local_rank_op",
        "local_size_op",
        "process_set_included_op",
        "rank_op",
        "size_op",
    ],
    "tfring.process_sets": [
        "ProcessSet",
        "add_process_set",
        "global_process_set",
        "remove_process_set",
    ],
    "tfring.training.accumulation": ["LocalGradientAggregationHelper"],
    "tfring.training.gradient_tape": ["DistributedGradientTape", "PartialDistributedGradientTape"],
    "tfring.world": [
        "barrier",
        "ccl_built",
        "cross_rank",
        "cross_size",
        "cuda_built",
        "ddl_built",
        "gloo_built",
        "gloo_enabled",
        "init",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "rank",
        "rocm_built",
        "shutdown",
        "size",
    ],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "Compressor",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "LocalGradientAggregationHelper",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "check_num_rank_power_of_2",
    "cross_rank",
    "cross_rank_op",
    "cross_size",
    "cross_size_op",
    "cuda_built",
    "ddl_built",
    "gather",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "rank",
    "rank_op",
    "recv",
    "reduce",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "run",
    "scatter",
    "send",
    "shutdown",
    "size",
    "size_op",
    "split_list",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise missing_attribute(__name__, name)
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
