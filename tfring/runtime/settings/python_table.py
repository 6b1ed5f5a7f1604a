"""The settings that Python reads, and the variables that tfring sets itself."""

from __future__ import annotations

import dataclasses

from tfring.runtime.settings.setting import (
    Group,
    Option,
    Reader,
    Setting,
    address,
    choice,
    count,
    flag,
    names,
    path,
    ports,
    seconds,
    text,
    words,
)


def _of_python(title: str, settings: tuple[Setting, ...]) -> Group:
    return Group(title, tuple(dataclasses.replace(one, reader=Reader.PYTHON) for one in settings))


START = _of_python(
    "Start and end of a job",
    (
        names(
            "INTERFACE",
            "Network interface: `eth0`, or the first of `eth0,eth1` that is up.",
            (),
            horovod="HOROVOD_GLOO_IFACE",
            option=Option(("--network-interface", "--network-interfaces"), metavar="NAME[,NAME]"),
        ),
        seconds(
            "START_TIMEOUT",
            "`init` waits this many seconds for all ranks.",
            600,
            low=0.001,
            high=86400,
            horovod="HOROVOD_START_TIMEOUT",
            option=Option(("--start-timeout",), metavar="SECONDS"),
        ),
        text(
            "SECRET",
            "The job's secret, the same text on all ranks. `tfring run`, MPI and jobs on one "
            "host need none ([Security](security.md)).",
        ),
        path(
            "SECRET_FILE",
            "File of mode 0600 with the secret, in place of `SECRET`.",
        ),
        flag(
            "INSECURE",
            "A job over several hosts may start without a secret. Anybody who reaches it can join.",
            False,
        ),
        text("JOB_ID", "Tells jobs apart that use the same address or secret."),
        text(
            "BIND_ADDR",
            "The address at which this rank listens; `0.0.0.0` for all.",
        ),
        text(
            "ADVERTISE_ADDR",
            "The address at which other ranks reach this one, if it is a different one; with the "
            "port, if that is a different one, too: `192.0.2.7:31000`.",
        ),
        ports(
            "PORT_RANGE",
            "Ranks, stores and launchers listen at ports of this range: `20000-20999`. Each rank "
            "and each waiting elastic worker of a host needs one, rank 0 and `tfring run` one or "
            "two more.",
            default_text="any free port",
        ),
        text(
            "RENDEZVOUS_ADDR",
            "The address where rank 0 listens while the job starts.",
        ),
        count(
            "RENDEZVOUS_PORT",
            "The port of `RENDEZVOUS_ADDR`. If it is set, tfring tries no other port.",
            low=1,
            high=65535,
        ),
        count(
            "PODS",
            "How many pods an indexed Job of Kubernetes has ([Kubernetes](kubernetes.md)).",
            low=1,
            high=1 << 20,
        ),
        count(
            "POD_SLOTS",
            "How many ranks each of these pods has.",
            1,
            low=1,
            high=1 << 20,
        ),
        count(
            "STOPPED_EXIT_CODE",
            "Exit code when SIGTERM stops `fit` after a checkpoint. `tfring run` uses it, too, "
            "if all ranks stop cleanly after a signal. 0 means that the training is done.",
            75,
            high=255,
        ),
        seconds(
            "STOP_TIMEOUT",
            "How many seconds after SIGTERM the ranks are killed. `tfring run` sets it to its "
            "`--stop-timeout`. An error names a checkpoint that cannot be written by then "
            "([Checkpoints](checkpoints.md#sigterm)).",
            low=0.0,
            high=1e9,
        ),
        choice(
            "COMMIT_COPIES",
            "Whether commits of an elastic job that the loss of one rank or host would take away "
            "are copied ([Elastic training](elastic.md#nothing-committed-is-lost)), and the parts "
            "of [sharded states](sharded_states.md#in-elastic-jobs). `auto`: yes.",
            "auto",
            choices=("auto", "off"),
            also=words("auto", "off"),
        ),
    ),
)

CHECKS = _of_python(
    "Checks of the training",
    (
        flag(
            "CHECK_START",
            "tfring checks the first steps: equal weights, different batches, reduced gradients "
            "([Failures](failures.md#weights-that-differ)).",
            True,
        ),
        flag(
            "DIVERGENCE_GUARD",
            "`fit` compares the weights of all ranks after each epoch "
            "([Failures](failures.md#weights-that-differ)).",
            True,
        ),
    ),
)

RECORDS = _of_python(
    "Records, timelines and metrics",
    (
        flag(
            "RECORD",
            "Each rank keeps a record of what it calls and runs.",
            True,
        ),
        path(
            "RECORD_DIR",
            "Folder for the records, which then stay. By default they are in /dev/shm while the "
            "job runs, and longer if it fails.",
        ),
        choice(
            "TRACEBACK",
            "What is shown of an exception that ends a rank: `short` has one line for frames of "
            "TensorFlow, Keras and tfring, and the errors of other ranks that follow from it are "
            "only counted; `full` is all that Python writes.",
            "short",
            choices=("short", "full"),
        ),
        flag(
            "STACKS",
            "This rank shows what its threads do, to `tfring stacks` and on SIGUSR1 ([Live "
            "view](live.md)).",
            True,
        ),
        path(
            "TIMELINE",
            "File for a timeline of the job ([Timeline](timeline.md)). `DYNAMIC`: the program "
            "starts it.",
            horovod="HOROVOD_TIMELINE",
            option=Option(
                ("--timeline", "--timeline-filename"),
                metavar="FILE",
                help="Write a timeline of the job for Perfetto: tfring help timeline.",
            ),
        ),
        count(
            "TIMELINE_MEGABYTES",
            "A rank keeps at most this much of a timeline: the newest part.",
            64,
            low=1,
            high=64 << 10,
        ),
        count(
            "METRICS_PORT",
            "Local rank r serves Prometheus at this port plus r. 0: any port. Without it there "
            "is no endpoint ([Metrics](metrics.md)).",
            high=65535,
        ),
        address("METRICS_ADDR", "The IP address of this endpoint.", "127.0.0.1"),
        path(
            "METRICS_TOKEN_FILE",
            "File of mode 0600 with the bearer token that the endpoint asks for.",
        ),
        path(
            "LIB_DIR",
            "Folder of the compiled libraries, for developers.",
            internal=True,
        ),
    ),
)


def _set_by(who: str, variables: str) -> tuple[Setting, ...]:
    return tuple(text(name, who, reader=Reader.OURS, internal=True) for name in variables.split())


OURS = Group(
    "Variables that tfring sets itself",
    (
        *_set_by(
            "`tfring run`",
            "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE HOST_NAME RENDEZVOUS_FD AGENT "
            "RESTART_COUNT",
        ),
        *_set_by("`tfring.run(function)`", "FUNCTION_ADDR FUNCTION_PORT FUNCTION_SECRET"),
        *_set_by("`init`, for the processes that a rank starts", "PARENT"),
        *_set_by(
            "the launcher of an elastic job",
            "ELASTIC_WORKER ELASTIC_STORE ELASTIC_HOST ELASTIC_SLOT ELASTIC_FIRST ELASTIC_MEMORY "
            "ELASTIC_PATIENCE",
        ),
    ),
)
