"""Variables of Horovod that have no effect in tfring."""

from __future__ import annotations

from collections.abc import Mapping

from tfring.runtime.settings.table import SETTINGS

# Read where it counts, by tfring.spark.
_READ_BY_SPARK = "HOROVOD_SPARK_START_TIMEOUT"

_NO_AUTOTUNER = "tfring does not tune itself: tfring help configuration has its settings"

# Why the others have none. A key that ends in _ stands for all variables that begin with it.
_WITHOUT_EFFECT = {
    "HOROVOD_AUTOTUNE": _NO_AUTOTUNER,
    "HOROVOD_AUTOTUNE_": _NO_AUTOTUNER,
    "HOROVOD_ELASTIC": "the launcher tells its ranks that the job is elastic",
    "HOROVOD_ELASTIC_": "use the options of `tfring run`",
    "HOROVOD_CYCLE_TIME": "there is no cycle time: tensors leave when they are ready",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "algorithms are chosen by size and number of ranks",
    "HOROVOD_TORUS_ALLREDUCE": "algorithms are chosen by size and number of ranks",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "each transport chooses its own chunk size",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "copies on a GPU are always batched",
    "HOROVOD_NUM_NCCL_STREAMS": "there is one stream, which keeps the order of the plans",
    "HOROVOD_DISABLE_NVTX_RANGES": "there are no NVTX ranges",
    "HOROVOD_GPU_ALLREDUCE": "TFRING_GPU_OPERATIONS counts for all collectives",
    "HOROVOD_GPU_ALLGATHER": "TFRING_GPU_OPERATIONS counts for all collectives",
    "HOROVOD_GPU_ALLTOALL": "TFRING_GPU_OPERATIONS counts for all collectives",
    "HOROVOD_GPU_BROADCAST": "TFRING_GPU_OPERATIONS counts for all collectives",
    "HOROVOD_GPU_REDUCESCATTER": "TFRING_GPU_OPERATIONS counts for all collectives",
    "HOROVOD_NCCL_": "NCCL is loaded when it is needed: TFRING_NCCL_LIBRARY names another one",
    "HOROVOD_ENABLE_XLA_OPS": "jit_compile=True needs no setting",
    "HOROVOD_THREAD_AFFINITY": "threads are not bound to cores: use the launcher's options",
    "HOROVOD_MPI_THREADS_DISABLE": "data goes over MPI with TFRING_CPU_OPERATIONS=mpi only",
    "HOROVOD_CONTROLLER": "there is one controller, over TCP",
    "HOROVOD_CCL_": "there is no oneCCL backend",
    "HOROVOD_GLOO_": "tfring does not use Gloo: set TFRING_RENDEZVOUS_ADDR or TFRING_START_TIMEOUT",
    "HOROVOD_SECRET_KEY": "the job's secret is TFRING_SECRET",
    "HOROVOD_SPARK_": "the functions of tfring.spark take arguments for it",
    "HOROVOD_RENDEZVOUS_": "set TFRING_RENDEZVOUS_ADDR and TFRING_RENDEZVOUS_PORT",
}


def warnings_of(environ: Mapping[str, str]) -> list[str]:
    """Returns a warning for each reason why variables have no effect.

    A variable that switches something off asks for nothing, and gets none.

    Args:
        environ: The environment.
    """
    aliases = {setting.horovod for setting in SETTINGS.values()}
    found: dict[str, list[str]] = {}
    for name in sorted(environ):
        asks_for_nothing = environ[name].lower() in ("", "0", "false", "off")
        if asks_for_nothing or name in aliases or name == _READ_BY_SPARK:
            continue
        begins = (key for key in _WITHOUT_EFFECT if key[-1] == "_" and name.startswith(key))
        why = _WITHOUT_EFFECT.get(name) or _WITHOUT_EFFECT.get(next(begins, ""))
        if why is not None:
            found.setdefault(why, []).append(name)
    return [
        f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} no effect: {why}"
        for why, names in found.items()
    ]
