"""Settings from the environment: ``TFRING_X``, or ``HOROVOD_X`` where both make sense.

The runtime never reads the environment. It gets its own settings from here as strings and checks
them itself (ops/runtime/base/config.h); what Python needs is checked here.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

# What the runtime understands. A test compares this list with the runtime's own.
RUNTIME_SETTINGS = (
    "FUSION_THRESHOLD",
    "CACHE_CAPACITY",
    "DISABLE_GROUP_FUSION",
    "MAX_PLANS_IN_FLIGHT",
    "LOCK_SCHEDULE",
    "MAX_PENDING_BYTES",
    "STALL_CHECK_TIME_SECONDS",
    "STALL_SHUTDOWN_TIME_SECONDS",
    "HEARTBEAT_SECONDS",
    "HEARTBEAT_TIMEOUT_SECONDS",
    "DIRECT_MAX_BYTES",
    "TREE_MAX_BYTES",
    "PIECE_BYTES",
    "DETERMINISTIC",
    "HIERARCHICAL_ALLREDUCE",
    "NETWORK_LATENCY_SECONDS",
    "NETWORK_BYTES_PER_SECOND",
    "WIRE_DTYPE",
    "CALL_SITE_CHECK",
    "CHECK_VALUES",
    "SHARED_MEMORY",
    "ARENA",
    "CPU_OPERATIONS",
    "GPU_OPERATIONS",
    "NCCL_LIBRARY",
    "CUDA_DRIVER",
    "LOG_LEVEL",
    "LOG_FORMAT",
    "LOG_HIDE_TIME",
    "LOG_REPEATS",
    "AUTOTUNE",
    "AUTOTUNE_LOG",
    "AUTOTUNE_WARMUP_SAMPLES",
    "AUTOTUNE_STEPS_PER_SAMPLE",
    "AUTOTUNE_SAMPLES",
)

DEFAULT_START_TIMEOUT = 60.0
DEFAULT_MESH_LIMIT = 64
DEFAULT_METRICS_ADDR = "127.0.0.1"
DEFAULT_TIMELINE_MEGABYTES = 64

PYTHON_SETTINGS = {
    "INTERFACE": "network interfaces to use, as eth0 or eth0,eth1: the first that is up counts",
    "START_TIMEOUT": f"seconds that init waits for all ranks (default {DEFAULT_START_TIMEOUT:g})",
    "SECRET": "per-job secret; the launcher makes a fresh one for every job",
    "SECRET_FILE": "file with the secret, of mode 0600, instead of SECRET",
    "INSECURE": "1 starts a job over several hosts without a secret: whoever reaches it can join",
    "BIND_ADDR": "the address at which this rank listens; 0.0.0.0 for all (default: by network)",
    "ADVERTISE_ADDR": "the address at which other ranks reach this one (default: where it listens)",
    "MEETING": "mpi or rendezvous: how ranks find each other where both are possible",
    "JOB_ID": "keeps the ranks of different jobs apart",
    "MESH_LIMIT": "up to this many ranks everybody connects to everybody, beyond it to its ring "
    f"neighbours only (default {DEFAULT_MESH_LIMIT})",
    "RENDEZVOUS_ADDR": "where rank 0 listens while the job starts",
    "RENDEZVOUS_PORT": "the port belonging to RENDEZVOUS_ADDR",
    "PODS": "how many pods an indexed Job of Kubernetes has: see docs/kubernetes.md",
    "POD_SLOTS": "how many ranks each of these pods has (default 1)",
    "STOPPED_EXIT_CODE": "what a rank exits with that SIGTERM has ended after its checkpoint, and "
    "tfring run after such a signal (default 0)",
    "DIVERGENCE_GUARD": "0: fit does not compare the ranks' weights after each epoch (default 1)",
    "CHECK_START": "0: neither compares the weights that the ranks begin to train with, nor says "
    "what else is wrong with the first steps (default 1)",
    "ENABLE_ASYNC_COMPLETION": "1: on a GPU an op is done when the GPU has its work, not when "
    "the results are there (default 0: eager calls and a step's last gradients only)",
    "STACKS": "0: this rank does not show its stacks, nor on SIGUSR1 (default 1)",
    "RECORD": "0: no record is kept of what this rank calls and runs (default 1)",
    "RECORD_DIR": "folder for the records, which then stay (default: in memory, as long as a job "
    "runs, and longer if it fails)",
    "METRICS_PORT": "port for Prometheus, plus the local rank; 0: any (default: no endpoint)",
    "METRICS_ADDR": f"the IP address of this endpoint (default {DEFAULT_METRICS_ADDR})",
    "METRICS_TOKEN_FILE": "file of mode 0600 with the bearer token that it wants",
    "OTEL_PLAN_SECONDS": "steps, and plans that take longer, become OpenTelemetry spans (default: "
    "no spans)",
    "TIMELINE": "file for a timeline of the job (default: none); DYNAMIC: the program starts it",
    "TIMELINE_MEGABYTES": "what a rank keeps of a timeline at most: its newest part "
    f"(default {DEFAULT_TIMELINE_MEGABYTES})",
    "LIB_DIR": "folder of the compiled libraries (for developers)",
}

# Accepted, also as HOROVOD_X, and without effect: Horovod needs them and tfring does not.
NO_OPS = {
    "DYNAMIC_PROCESS_SETS": "process sets can always be added and removed",
    "TIMELINE_MARK_CYCLES": "there are no cycles that a timeline could mark",
}

# Set by the launcher, one value per rank. See environments/tfring_run.py.
LAUNCHER_SETTINGS = (
    "RANK",
    "SIZE",
    "LOCAL_RANK",
    "LOCAL_SIZE",
    "CROSS_RANK",
    "CROSS_SIZE",
    "RENDEZVOUS_FD",
    "FUNCTION_ADDR",
    "FUNCTION_PORT",
    "FUNCTION_SECRET",
    "PARENT",
    "COMPARE_FOLDER",
    "COMPARE_STEPS",
    "ELASTIC_WORKER",
    "ELASTIC_STORE",
    "ELASTIC_HOST",
    "ELASTIC_SLOT",
    "ELASTIC_FIRST",
)

# Horovod's name for the same thing. TFRING_X wins over its alias.
_ALIASES = {
    "HOROVOD_FUSION_THRESHOLD": "FUSION_THRESHOLD",
    "HOROVOD_CACHE_CAPACITY": "CACHE_CAPACITY",
    "HOROVOD_DISABLE_GROUP_FUSION": "DISABLE_GROUP_FUSION",
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "STALL_CHECK_TIME_SECONDS",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "STALL_SHUTDOWN_TIME_SECONDS",
    "HOROVOD_LOG_LEVEL": "LOG_LEVEL",
    "HOROVOD_LOG_HIDE_TIME": "LOG_HIDE_TIME",
    "HOROVOD_CPU_OPERATIONS": "CPU_OPERATIONS",
    "HOROVOD_GPU_OPERATIONS": "GPU_OPERATIONS",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "HIERARCHICAL_ALLREDUCE",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "ENABLE_ASYNC_COMPLETION",
    "HOROVOD_AUTOTUNE": "AUTOTUNE",
    "HOROVOD_AUTOTUNE_LOG": "AUTOTUNE_LOG",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "AUTOTUNE_WARMUP_SAMPLES",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "AUTOTUNE_STEPS_PER_SAMPLE",
    "HOROVOD_GLOO_IFACE": "INTERFACE",
    "HOROVOD_START_TIMEOUT": "START_TIMEOUT",
    "HOROVOD_TIMELINE": "TIMELINE",
}

# Read where it counts, by tfring.spark.
_READ_BY_SPARK = "HOROVOD_SPARK_START_TIMEOUT"

# What Horovod does with these, tfring does not do, or needs no setting for. Keys ending in _ stand
# for all variables that begin so.
_WITHOUT_EFFECT = {
    "HOROVOD_AUTOTUNE_": "the autotuner tries a fixed list of values, see docs/configuration.md",
    "HOROVOD_ELASTIC": "the launcher of an elastic job says that it is one",
    "HOROVOD_ELASTIC_": "the options of the launcher of an elastic job say it",
    "HOROVOD_CYCLE_TIME": "there is no cycle time: what is ready is sent",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "algorithms are chosen by size and number of ranks",
    "HOROVOD_TORUS_ALLREDUCE": "algorithms are chosen by size and number of ranks",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum is cut as all transports take it",
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
    "HOROVOD_GLOO_": "there is no Gloo: TFRING_RENDEZVOUS_ADDR and TFRING_START_TIMEOUT are alike",
    "HOROVOD_SECRET_KEY": "the job's secret is TFRING_SECRET",
    "HOROVOD_SPARK_": "the functions of tfring.spark take arguments for it",
    "HOROVOD_RENDEZVOUS_": "TFRING_RENDEZVOUS_ADDR and TFRING_RENDEZVOUS_PORT are alike",
}

# Settings that may differ between ranks; rank 0's value of the others counts for the whole job.
LOCAL_SETTINGS = frozenset(
    {"NCCL_LIBRARY", "CUDA_DRIVER", *(name for name in RUNTIME_SETTINGS if name.startswith("LOG_"))}
)


class SettingError(ValueError):
    """A variable has a value that it cannot have. The message names both and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """What the environment asks for.

    Attributes:
        runtime: Settings of the compiled runtime that are set, by name without prefix.
        interfaces: Network interfaces to choose from, in order; empty means any.
        start_timeout: Seconds that init waits for the other ranks.
        mesh_limit: Largest number of ranks that are all connected with each other.
        rendezvous_addr: Where rank 0 listens, or None: the environment decides.
        rendezvous_port: The port for it, or None.
        secret: The job's secret as given, or None.
        secret_file: The file that holds it, or None.
        insecure: Whether a job over several hosts may do without a secret.
        bind_addr: Where this rank listens; None: tfring chooses.
        advertise_addr: Where other ranks reach this one; None: where it listens.
        meeting: "mpi" or "rendezvous"; None: what the environment suggests.
        job_id: Keeps jobs apart, or None: the environment decides.
        stopped_exit_code: What a rank exits with that was asked to end, and did in good order.
        divergence_guard: Whether `fit` compares the ranks' weights after each epoch.
        check_start: Whether the first steps are looked at: equal weights, different batches.
        async_completion: Whether ops on a GPU are done before their results are there.
        stacks: Whether this rank says what its threads do when it is asked, or on SIGUSR1.
        record: Whether a record is kept of what this rank calls and runs.
        record_dir: The folder for it, or None.
        metrics_port: Of the endpoint for Prometheus on local rank 0; None: there is none.
        metrics_addr: The IP address of this endpoint.
        metrics_token_file: The file with the token that it wants, or None.
        otel_plan_seconds: Plans that take longer become spans; None: nothing does.
        timeline: The file for a timeline; None: none, or the program starts it.
        timeline_megabytes: What a rank keeps of it at most.
        unknown: One warning for every ``TFRING_X`` that nobody knows.
        without_effect: Warnings of those ``HOROVOD_X`` that ask for something that tfring does not
            have.
    """

    runtime: dict[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    start_timeout: float = DEFAULT_START_TIMEOUT
    mesh_limit: int = DEFAULT_MESH_LIMIT
    rendezvous_addr: str | None = None
    rendezvous_port: int | None = None
    secret: str | None = field(default=None, repr=False)
    secret_file: str | None = None
    insecure: bool = False
    bind_addr: str | None = None
    advertise_addr: str | None = None
    meeting: str | None = None
    job_id: str | None = None
    stopped_exit_code: int = 0
    divergence_guard: bool = True
    check_start: bool = True
    async_completion: bool = False
    stacks: bool = True
    record: bool = True
    record_dir: str | None = None
    metrics_port: int | None = None
    metrics_addr: str = DEFAULT_METRICS_ADDR
    metrics_token_file: str | None = None
    otel_plan_seconds: float | None = None
    timeline: str | None = None
    timeline_megabytes: int = DEFAULT_TIMELINE_MEGABYTES
    unknown: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Reads every setting from the environment.

    Args:
        environ: The variables, usually ``os.environ``.

    Returns:
        The settings; those of the runtime are not checked yet.

    Raises:
        SettingError: A Python setting has an impossible value.
    """
    values = _collect(environ)
    timeline = values.get("TIMELINE", "")
    return Settings(
        runtime={name: values[name] for name in RUNTIME_SETTINGS if name in values},
        interfaces=tuple(i.strip() for i in values.get("INTERFACE", "").split(",") if i.strip()),
        start_timeout=_seconds("START_TIMEOUT", values, DEFAULT_START_TIMEOUT),
        mesh_limit=_integer("MESH_LIMIT", values, DEFAULT_MESH_LIMIT, 2, 4096),
        rendezvous_addr=values.get("RENDEZVOUS_ADDR") or None,
        rendezvous_port=_port("RENDEZVOUS_PORT", values, lowest=1),
        secret=values.get("SECRET") or None,
        secret_file=values.get("SECRET_FILE") or None,
        insecure=_switch("INSECURE", values),
        bind_addr=values.get("BIND_ADDR") or None,
        advertise_addr=values.get("ADVERTISE_ADDR") or None,
        meeting=_choice("MEETING", values, ("mpi", "rendezvous")),
        job_id=values.get("JOB_ID") or None,
        stopped_exit_code=_integer("STOPPED_EXIT_CODE", values, 0, 0, 255),
        divergence_guard=_switch("DIVERGENCE_GUARD", values, default="1"),
        check_start=_switch("CHECK_START", values, default="1"),
        async_completion=_switch("ENABLE_ASYNC_COMPLETION", values),
        stacks=_switch("STACKS", values, default="1"),
        record=_switch("RECORD", values, default="1"),
        record_dir=values.get("RECORD_DIR") or None,
        metrics_port=_port("METRICS_PORT", values, lowest=0),
        metrics_addr=_ip_address("METRICS_ADDR", values, DEFAULT_METRICS_ADDR),
        metrics_token_file=values.get("METRICS_TOKEN_FILE") or None,
        otel_plan_seconds=_seconds("OTEL_PLAN_SECONDS", values, 0.0) or None,
        timeline=None if timeline.upper() in ("", "DYNAMIC") else timeline,
        timeline_megabytes=_integer(
            "TIMELINE_MEGABYTES", values, DEFAULT_TIMELINE_MEGABYTES, 1, 65536
        ),
        unknown=tuple(_unknown_warnings(environ)),
        without_effect=tuple(_horovod_warnings(environ)),
    )


def _collect(environ: Mapping[str, str]) -> dict[str, str]:
    # An empty variable of Horovod's asks for nothing.
    values = {ours: environ[theirs] for theirs, ours in _ALIASES.items() if environ.get(theirs)}
    if environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0", "false", "False"):
        values["STALL_CHECK_TIME_SECONDS"] = "0"
    for name in (*RUNTIME_SETTINGS, *PYTHON_SETTINGS, *LAUNCHER_SETTINGS):
        if f"TFRING_{name}" in environ:
            values[name] = environ[f"TFRING_{name}"]
    return values


def _unknown_warnings(environ: Mapping[str, str]) -> list[str]:
    names = (*RUNTIME_SETTINGS, *PYTHON_SETTINGS, *LAUNCHER_SETTINGS, *NO_OPS)
    known = [f"TFRING_{name}" for name in names]
    warnings = []
    for name in sorted(environ):
        if not name.startswith("TFRING_") or name.startswith("TFRING_TEST_") or name in known:
            continue
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(near)}?" if near else "`tfring doctor` lists all of them"
        warnings.append(f"the variable {name} is unknown and has no effect: {hint}")
    return warnings


def _horovod_warnings(environ: Mapping[str, str]) -> list[str]:
    """Returns one warning per reason; a variable that switches something off asks for nothing."""
    names: dict[str, list[str]] = {}
    for name in sorted(environ):
        asks_for_nothing = environ[name].lower() in ("", "0", "false", "off")
        if asks_for_nothing or name in _ALIASES or name == _READ_BY_SPARK:
            continue
        why = _WITHOUT_EFFECT.get(name) or next(
            (t for key, t in _WITHOUT_EFFECT.items() if key[-1] == "_" and name.startswith(key)),
            None,
        )
        if why is not None:
            names.setdefault(why, []).append(name)
    plural = {why: "has" if len(found) == 1 else "have" for why, found in names.items()}
    return [f"{', '.join(found)} {plural[why]} no effect: {why}" for why, found in names.items()]


def _seconds(name: str, values: Mapping[str, str], default: float) -> float:
    text = values.get(name)
    if text is None or text == "":
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= 86400:
        raise SettingError(
            f'TFRING_{name} is "{text}" and has to be a number of seconds above 0, at most 86400'
        )
    return number


def _switch(name: str, values: Mapping[str, str], default: str = "0") -> bool:
    text = values.get(name) or default
    if text not in ("0", "1"):
        raise SettingError(f'TFRING_{name} is "{text}" and has to be 0 or 1')
    return text == "1"


def _choice(name: str, values: Mapping[str, str], allowed: tuple[str, ...]) -> str | None:
    text = values.get(name, "")
    if text and text not in allowed:
        raise SettingError(f'TFRING_{name} is "{text}" and has to be {" or ".join(allowed)}')
    return text or None


def _ip_address(name: str, values: Mapping[str, str], default: str) -> str:
    text = values.get(name) or default
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise SettingError(f'TFRING_{name} is "{text}" and has to be an IP address') from None


def _port(name: str, values: Mapping[str, str], lowest: int) -> int | None:
    return _integer(name, values, 0, lowest, 65535) if values.get(name) else None


def _integer(name: str, values: Mapping[str, str], default: int, low: int, high: int) -> int:
    text = values.get(name)
    if text is None or text == "":
        return default
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise SettingError(
            f'TFRING_{name} is "{text}" and has to be a whole number from {low} to {high}'
        )
    return number
