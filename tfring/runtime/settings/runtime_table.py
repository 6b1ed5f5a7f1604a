"""The settings of the compiled runtime, and the two of Python's that belong beside them."""

from __future__ import annotations

from tfring.runtime.settings.setting import (
    Group,
    Option,
    Reader,
    choice,
    count,
    flag,
    path,
    seconds,
    size,
    words,
)

SCHEDULING = Group(
    "Fusion and order",
    (
        size(
            "FUSION_THRESHOLD",
            "tfring fuses tensors into collectives of at most this many bytes. 0: no fusion.",
            128 << 20,
            horovod="HOROVOD_FUSION_THRESHOLD",
            option=Option(
                ("--fusion-threshold-mb",),
                metavar="MB",
                scale=1 << 20,
            ),
            member="fusion_threshold_bytes",
        ),
        count(
            "CACHE_CAPACITY",
            "The response cache takes this many requests, which are then sent as ids. Half of it "
            "is for names that come again. 0: no cache.",
            1 << 10,
            high=1 << 20,
            horovod="HOROVOD_CACHE_CAPACITY",
            option=Option(("--cache-capacity",), metavar="N"),
        ),
        flag(
            "DISABLE_GROUP_FUSION",
            "tfring never fuses a grouped collective with others.",
            False,
            horovod="HOROVOD_DISABLE_GROUP_FUSION",
            internal=True,
        ),
        flag(
            "LOCK_SCHEDULE",
            "Allreduces that repeat in each step run without asking rank 0 ([Locks](locks.md)).",
            False,
            default_text="1 where all ranks share memory, else 0",
        ),
        count(
            "MAX_PLANS_IN_FLIGHT",
            "While this many plans run, tensors that become ready wait and are fused.",
            2,
            low=1,
            high=1 << 20,
            internal=True,
        ),
        size(
            "MAX_PENDING_BYTES",
            "Rank 0 keeps at most this much for calls that wait for other ranks. Calls beyond "
            "it fail with `ResourceExhaustedError`.",
            4 << 30,
            low=64 << 10,
        ),
        flag(
            "CALL_SITE_CHECK",
            "Eager collectives without a name fail where the ranks call them on different lines.",
            True,
        ),
        choice(
            "CHECK_VALUES",
            "What happens if this rank's part of a sum holds NaN or Inf: `warn` (or 1), `error` "
            "(the call fails), or 0 (no check). See [Values](values.md).",
            "0",
            choices=("0", "warn", "error"),
            also=words("warn", "0"),
            native="ValueAction kIgnore kWarn kError",
        ),
        flag(
            "DETERMINISTIC",
            "Equal sums have equal bits each time: all algorithms add in one order. One host "
            "and several hosts may still differ in 16-bit floats. For NCCL see "
            "[GPUs](gpu.md#the-same-bits-each-time).",
            False,
        ),
    ),
)

LIVENESS = Group(
    "Stalls and lost ranks",
    (
        seconds(
            "STALL_CHECK_TIME_SECONDS",
            "Rank 0 warns when a tensor has waited this long for some ranks, and after at most "
            "3 s if ranks wait for each other. 0: no warning, and no end unless "
            "`STALL_SHUTDOWN_TIME_SECONDS` is set.",
            10,
            horovod="HOROVOD_STALL_CHECK_TIME_SECONDS",
            option=Option(("--stall-check-warning-time-seconds",), metavar="S"),
            member="stall_warning",
        ),
        seconds(
            "STALL_SHUTDOWN_TIME_SECONDS",
            "The job ends when a tensor has waited this long, or a running collective has made "
            "no progress, and after 45 s if ranks wait for each other in eager calls. 0: never.",
            600,
            horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
            option=Option(("--stall-check-shutdown-time-seconds",), metavar="S"),
            member="stall_shutdown",
        ),
        seconds(
            "HEARTBEAT_SECONDS",
            "Idle ranks send a heartbeat this often. With 0 they send none.",
            5,
            member="heartbeat_interval",
        ),
        seconds(
            "HEARTBEAT_TIMEOUT_SECONDS",
            "A rank is lost when nothing has come from it for this long. At least three times "
            "`HEARTBEAT_SECONDS`.",
            60,
            member="heartbeat_timeout",
        ),
    ),
)

ALGORITHMS = Group(
    "Algorithms",
    (
        size(
            "DIRECT_MAX_BYTES",
            "Allreduces of at most this many bytes use direct exchange.",
            32 << 10,
            internal=True,
        ),
        size(
            "TREE_MAX_BYTES",
            "Allreduces of at most this many bytes use a tree, larger ones the ring.",
            256 << 10,
            internal=True,
        ),
        size(
            "PIECE_BYTES",
            "Large collectives are pipelined in pieces of this many bytes.",
            256 << 10,
            low=64,
            internal=True,
        ),
        choice(
            "HIERARCHICAL_ALLREDUCE",
            "Allreduces over several hosts reduce within each host first: 0 never, 1 always, "
            "`auto` where that is expected to be faster. tfring ignores 1 with `DETERMINISTIC`. "
            "See [Performance](performance.md#between-hosts).",
            "auto",
            choices=("auto", "0", "1"),
            also=words("1", "0"),
            horovod="HOROVOD_HIERARCHICAL_ALLREDUCE",
            option=Option(
                ("--hierarchical-allreduce",),
                off=("--no-hierarchical-allreduce",),
                help="Allreduces over several hosts reduce within each host first. Default: where "
                "that is expected to be faster.",
            ),
            native="Hierarchy kAuto kNever kAlways",
        ),
        seconds(
            "NETWORK_LATENCY_SECONDS",
            "A small message takes this long from host to host. `HIERARCHICAL_ALLREDUCE=auto` "
            "uses it and `NETWORK_BYTES_PER_SECOND`. Neither is measured: `tfring doctor -H "
            "a:4,b:4` shows their effect.",
            3e-05,
            high=10,
            member="network_latency",
            internal=True,
        ),
        size(
            "NETWORK_BYTES_PER_SECOND",
            "A host can send this many bytes a second to other hosts.",
            1250000000,
            low=1 << 10,
            internal=True,
        ),
    ),
)

TRANSPORTS = Group(
    "Transports",
    (
        flag(
            "SHARED_MEMORY",
            "Ranks of one host exchange data through shared memory. 0: through sockets.",
            True,
            internal=True,
        ),
        flag(
            "ARENA",
            "Sums, broadcasts and allgathers of one host's ranks go through memory that all of "
            "them see. 0: from rank to rank.",
            True,
            internal=True,
        ),
        choice(
            "CPU_OPERATIONS",
            "What carries tensors in host memory: `auto` (shared memory within a host where it "
            "is possible, TCP between hosts), `shm` (the same, and `init` fails where ranks of "
            "a host cannot share memory), `tcp` (no shared memory), `mpi` (MPI in place of TCP, "
            "[below](#data-over-mpi)). Horovod's `GLOO` and `CCL` are `auto`.",
            "auto",
            choices=("auto", "shm", "tcp", "mpi"),
            also={"gloo": "auto", "ccl": "auto"},
            horovod="HOROVOD_CPU_OPERATIONS",
            native="CpuOperations kAuto kShm kTcp kMpi",
        ),
        choice(
            "GPU_OPERATIONS",
            "What carries tensors in GPU memory: `nccl`, `host` (copies through the host), or "
            "`auto`: NCCL where all ranks can. Horovod's `MPI` and `GLOO` are `host`.",
            "auto",
            choices=("auto", "nccl", "host"),
            also={"mpi": "host", "gloo": "host"},
            horovod="HOROVOD_GPU_OPERATIONS",
            native="GpuOperations kAuto kNccl kHost",
        ),
        path(
            "NCCL_LIBRARY",
            "Path of `libnccl.so.2`. Without it tfring uses the one that is loaded, then that "
            "of the package `nvidia-nccl-cu12`, then the system's.",
            "",
            per_rank=True,
        ),
        path(
            "CUDA_DRIVER",
            "Path or name of the CUDA driver.",
            "libcuda.so.1",
            per_rank=True,
            internal=True,
        ),
        flag(
            "ENABLE_ASYNC_COMPLETION",
            "On a GPU every collective's op is done when the GPU has its work, before the "
            "results are there. 0: only eager calls and a step's last gradients.",
            False,
            horovod="HOROVOD_ENABLE_ASYNC_COMPLETION",
            reader=Reader.PYTHON,
        ),
        count(
            "MESH_LIMIT",
            "In jobs of up to this many ranks `init` connects all with all for data. In larger "
            "ones ranks of different hosts connect when a collective needs it.",
            64,
            low=2,
            high=4 << 10,
            reader=Reader.PYTHON,
            internal=True,
        ),
    ),
)

LOGS = Group(
    "Logs",
    (
        choice(
            "LOG_LEVEL",
            "The lowest level that is logged, also as 0 to 4 ([Logs](logs.md)).",
            "info",
            choices=("trace", "debug", "info", "warning", "error"),
            also={
                "0": "trace",
                "1": "debug",
                "2": "info",
                "3": "warning",
                "4": "error",
                "fatal": "error",
            },
            horovod="HOROVOD_LOG_LEVEL",
            option=Option(("--log-level",), metavar="LEVEL"),
            per_rank=True,
            native="int64_t 0 1 2 3 4",
        ),
        choice(
            "LOG_FORMAT",
            "`json`: one object a line.",
            "text",
            choices=("text", "json"),
            option=Option(("--log-format",), metavar="FORMAT"),
            per_rank=True,
            member="log_json",
            native="bool false true",
        ),
        flag(
            "LOG_HIDE_TIME",
            "Log lines have no time.",
            False,
            horovod="HOROVOD_LOG_HIDE_TIME",
            option=Option(
                ("--log-without-timestamp", "--log-hide-timestamp"),
                off=("--log-with-timestamp", "--no-log-hide-timestamp"),
            ),
            per_rank=True,
            internal=True,
        ),
        count(
            "LOG_REPEATS",
            "A text, numbers aside, is logged this many times a minute and then counted. 0: no "
            "limit.",
            20,
            high=1 << 20,
            per_rank=True,
            internal=True,
        ),
    ),
)
