"""What Keras users import: `import tfring.keras as hvd`.

Nothing here imports TensorFlow before it is needed, so `hvd.init()` can still set up what
TensorFlow reads when it starts.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfring.compat.missing_names import missing_attribute

if TYPE_CHECKING:
    from tfring import (
        Adasum,
        Average,
        Compression,
        Max,
        Min,
        ProcessSet,
        Product,
        Sum,
        add_process_set,
        allgather_object,
        barrier,
        broadcast_global_variables,
        broadcast_object,
        broadcast_object_fn,
        broadcast_variables,
        ccl_built,
        cross_rank,
        cross_size,
        cuda_built,
        ddl_built,
        global_process_set,
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
        remove_process_set,
        rocm_built,
        shutdown,
        size,
    )
    from tfring.keras import callbacks
    from tfring.keras.collectives import (
        allgather,
        allreduce,
        broadcast,
        reducescatter,
    )
    from tfring.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
    from tfring.keras.saving import load_model
    from tfring.keras.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
]

_OWN = {
    "DistributedOptimizer": "tfring.keras.optimizer",
    "PartialDistributedOptimizer": "tfring.keras.optimizer",
    "SyncBatchNormalization": "tfring.keras.sync_batch_norm",
    "allgather": "tfring.keras.collectives",
    "allreduce": "tfring.keras.collectives",
    "broadcast": "tfring.keras.collectives",
    "load_model": "tfring.keras.saving",
    "reducescatter": "tfring.keras.collectives",
}


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return importlib.import_module("tfring.keras.callbacks")
    if name in _OWN:
        value = getattr(importlib.import_module(_OWN[name]), name)
    elif name in __all__:
        value = getattr(importlib.import_module("tfring"), name)
    else:
        raise missing_attribute(__name__, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
