"""The work of a Spark task for a job: it starts an agent, and connects it with the program.

The agent is that of `tfring run` for a host (tfring/launch/agents/host_agent.py). It starts a rank
when the program orders it, and ends it when the connection or this task ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from typing import IO

from pyspark import TaskContext

from tfring.integration import Channel, IntegrityError, agent_command, link_to, search_path
from tfring.spark.meeting import GPUS, MAX_BYTES, PYTHON, Meeting, Task

__all__ = ["get_available_devices"]

_CONNECT_SECONDS = 30.0
_CHUNK = 1 << 16
# Not for ranks; the first is a secret of Spark.
_NOT_FOR_RANKS = (
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_PORT",
    "SPARK_REUSE_WORKER",
)


def serve(meeting: Meeting, needed: bool, partition: int, rows: Iterable[object]) -> Iterator[str]:
    """Works for one job, until the program ends the connection. The function of a Spark task.

    Args:
        meeting: where to find the program.
        needed: whether the job fails without this task.
        partition: the number of the task.
        rows: of the partition; not used.

    Returns:
        Why it could not work, if it could not.

    Raises:
        RuntimeError: the same, for a task that is needed.
    """
    for _ in rows:
        pass
    context = TaskContext.get()
    attempt = context.taskAttemptId()
    where = (meeting.address, meeting.port)
    try:
        channel = link_to(*where, meeting.secret, attempt, _CONNECT_SECONDS)
    except ConnectionError as error:
        why = (
            f"task {attempt} cannot reach the program at {meeting.address}:{meeting.port}: "
            f"{error}. Set spark.driver.host to an address that executors can reach at any port"
        )
        if needed:
            raise RuntimeError(why) from None
        print(f"[tfring] {why}", file=sys.stderr)
        return iter((why,))
    with channel.sock, contextlib.suppress(OSError, IntegrityError):
        _work(channel, meeting, _this_task(context, partition, channel))
    return iter(())


def _this_task(context: TaskContext, partition: int, channel: Channel) -> Task:
    gpus = context.resources().get("gpu")
    address = channel.sock.getsockname()[0]  # this host, in the program's network
    addresses = () if gpus is None else tuple(map(str, gpus.addresses))
    return Task(partition, context.taskAttemptId(), str(address), addresses)


def _work(channel: Channel, meeting: Meeting, task: Task) -> None:
    """Says who this task is, and passes messages between the agent and the program."""
    channel.send(json.dumps(task.message()).encode())
    answer = json.loads(channel.receive(MAX_BYTES))
    if "env" not in answer:
        print(f"[tfring] {task.name}: {answer.get('refused')}", file=sys.stderr, flush=True)
        return
    agent = subprocess.Popen(
        agent_command(os.getpid(), guarded=True),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**_variables(meeting, task), **answer["env"]},
        bufsize=0,
    )
    assert agent.stdin is not None and agent.stdout is not None
    with agent, agent.stdout:
        thread = threading.Thread(target=_pass_on, args=(channel, agent.stdin), daemon=True)
        thread.start()
        with contextlib.suppress(OSError):
            while data := os.read(agent.stdout.fileno(), _CHUNK):
                channel.send(data)
        with contextlib.suppress(OSError):
            channel.sock.shutdown(2)
        thread.join()


def _pass_on(channel: Channel, stdin: IO[bytes]) -> None:
    """Passes the program's messages to the agent; the agent's input ends with the connection."""
    with contextlib.suppress(OSError, IntegrityError), stdin:
        while True:
            data = memoryview(channel.receive(MAX_BYTES))
            while data:
                data = data[stdin.write(data) :]


def _variables(meeting: Meeting, task: Task) -> dict[str, str]:
    """Returns the variables of the agent, which its rank inherits."""
    values = {name: text for name, text in os.environ.items() if name not in _NOT_FOR_RANKS}
    # The rank can import what the task can, also files that were sent with the program.
    own = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib"))
    folders = [os.path.abspath(one) for one in sys.path if one and not one.startswith(own)]
    values["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))
    if meeting.horovod:
        values["PYTHONPATH"] = search_path(values)
    values[PYTHON] = sys.executable
    values[GPUS] = ",".join(task.gpus)
    values["TFRING_SECRET"] = values["TFRING_X_FUNCTION_SECRET"] = meeting.secret
    return values


def get_available_devices() -> list[str]:
    """Returns the GPUs that Spark gave to the task of this rank."""
    return [gpu for gpu in os.environ.get(GPUS, "").split(",") if gpu]
