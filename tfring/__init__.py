"""tfring: synchronous data-parallel training for TensorFlow 2 and Keras 3, on many processes.

    import tfring as hvd
    hvd.init()
    tape = hvd.DistributedGradientTape(tape)

The names are Horovod's. They are loaded when they are first used: importing tfring imports neither
TensorFlow nor the compiled runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfring.horovod_names import missing_attribute
from tfring.reduce_ops import Adasum, Average, Max, Min, Product, Sum
from tfring.version import __version__

if TYPE_CHECKING:
    from tfring.aggregation import LocalGradientAggregationHelper
    from tfring.collectives import (
        allgather,
        allreduce,
        broadcast,
        cross_rank_op,
        cross_size_op,
        grouped_allgather,
        grouped_allreduce,
        handle_average_backwards_compatibility,
        local_rank_op,
        local_size_op,
        process_set_included_op,
        rank_op,
        size_op,
    )
    from tfring.compression import Compression, Compressor
    from tfring.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
    from tfring.helpers import (
        check_num_rank_power_of_2,
        gpu_available,
        split_list,
    )
    from tfring.keras import callbacks
    from tfring.keras.sync_batch_norm import SyncBatchNormalization
    from tfring.keras.top_level import DistributedOptimizer
    from tfring.launcher.function import run
    from tfring.objects import allgather_object, broadcast_object, broadcast_object_fn
    from tfring.point_to_point import (
        recv,
        send,
    )
    from tfring.process_sets import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
    from tfring.rooted import (
        gather,
        reduce,
        scatter,
    )
    from tfring.scattering import (
        alltoall,
        grouped_reducescatter,
        reducescatter,
    )
    from tfring.synchronization import (
        join,
    )
    from tfring.tf1 import BroadcastGlobalVariablesHook, broadcast_global_variables
    from tfring.variables import (
        broadcast_,
        broadcast_variables,
    )
    from tfring.world import (
        barrier,
        ccl_built,
        cross_rank,
        cross_size,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rank,
        rocm_built,
        shutdown,
        size,
    )

_HOME = {
    "tfring.helpers": (
        "check_num_rank_power_of_2",
        "gpu_available",
        "split_list",
    ),
    "tfring.synchronization": ("join",),
    "tfring.point_to_point": (
        "recv",
        "send",
    ),
    "tfring.rooted": (
        "gather",
        "reduce",
        "scatter",
    ),
    "tfring.scattering": (
        "alltoall",
        "grouped_reducescatter",
        "reducescatter",
    ),
    "tfring.collectives": (
        "allgather",
        "allreduce",
        "broadcast",
        "cross_rank_op",
        "cross_size_op",
        "grouped_allgather",
        "grouped_allreduce",
        "handle_average_backwards_compatibility",
        "local_rank_op",
        "local_size_op",
        "process_set_included_op",
        "rank_op",
        "size_op",
    ),
    "tfring.compression": ("Compression", "Compressor"),
    "tfring.aggregation": ("LocalGradientAggregationHelper",),
    "tfring.gradient_tape": ("DistributedGradientTape", "PartialDistributedGradientTape"),
    "tfring.keras": ("callbacks",),
    "tfring.keras.sync_batch_norm": ("SyncBatchNormalization",),
    "tfring.keras.top_level": ("DistributedOptimizer",),
    "tfring.launcher.function": ("run",),
    "tfring.objects": ("allgather_object", "broadcast_object", "broadcast_object_fn"),
    "tfring.tf1": ("BroadcastGlobalVariablesHook", "broadcast_global_variables"),
    "tfring.variables": (
        "broadcast_",
        "broadcast_variables",
    ),
    "tfring.process_sets": (
        "ProcessSet",
        "add_process_set",
        "global_process_set",
        "remove_process_set",
    ),
    "tfring.world": (
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
    ),
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
