"""Spark clusters on this host, in local-cluster mode, and the processes in them."""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

_SECONDS = 60


def missing():
    """The reason why Spark cannot run here; "" if it can."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") or (home and (Path(home) / "bin" / "java").exists()):
        return ""
    return "there is no Java here (Debian: openjdk-17-jre-headless), and Spark needs it"


CLUSTER = "local-cluster[2,1,1024]"  # executors with a core each, as separate processes
ONE_PROCESS = "local[2]"  # two tasks at a time in the driver's process, which starts sooner


def settings(folder, master):
    """The settings of a Spark on this host."""
    return {
        "spark.master": master,
        "spark.app.name": "tests",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        # Long limits: on a busy machine a slow executor is not dead.
        "spark.network.timeout": "600s",
        "spark.executor.heartbeatInterval": "60s",
        "spark.rpc.askTimeout": "600s",
    }


def variables(folder, master=ONE_PROCESS):
    """The environment of a program that makes a session with default settings."""
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in settings(folder, master).items()]
    (conf / "spark-defaults.conf").write_text("".join(lines))
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(conf),
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }


def start_cluster(folder):
    """Starts a cluster and connects to it; returns the session."""
    os.environ.update(variables(folder, CLUSTER))
    return SparkSession.builder.getOrCreate()


def processes(word):
    """The ids of the processes below this one with a word in their command line, oldest first."""
    found, waiting = [], [os.getpid()]
    while waiting:
        below = [pid for pid, parent in _parents().items() if parent == waiting[0]]
        del waiting[0]
        waiting += below
        found += [pid for pid in below if word in _command(pid)]
    return sorted(found)


def _parents():
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            if stat[0] != "Z":
                found[int(entry.name)] = int(stat[1])
    return found


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def of_ranks():
    """The command lines of this cluster's agents and ranks, and of the processes they started.

    Their parents may be gone, so descent does not find all of them: it finds them by their
    environment, with the folder of this cluster and the secret of a job.
    """
    folder = f"SPARK_WORKER_DIR={os.environ['SPARK_WORKER_DIR']}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            given = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if folder in given and any(one.startswith(b"TFRING_SECRET=") for one in given):
                found.append(_command(entry.name))
    return found


def wait_until_nothing_is_left(context, word=""):
    """Fails if an agent, a rank, a process they started, or a Spark task is left.

    With a word, it counts only processes that have it in their command line.
    """
    until = time.monotonic() + _SECONDS
    while left := [
        *(command for command in of_ranks() if word in command),
        *context.statusTracker().getActiveStageIds(),
    ]:
        assert time.monotonic() < until, f"after {_SECONDS} s there are still {left}"
        time.sleep(0.2)
