"""Messages between the program that starts a job and the tasks of Spark when they meet.

A task connects to the program and proves that it knows the job's secret, which Spark brought to it.
It says who it is (`Task`, as JSON). If the program accepts it, it answers with `env`, the variables
of the agent that the task starts; otherwise with `refused`, the reason. After that, messages
between agent and program follow: see tfring/launch/agents/protocol.py. All messages carry MACs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

# Tell a rank the Python of its task, and the GPUs that Spark gave to the task.
PYTHON, GPUS = "SPARK_TASK_PYTHON", "SPARK_TASK_GPUS"
MAX_BYTES = 1 << 24


class Meeting(NamedTuple):
    """Where tasks find the program.

    Attributes:
        address: its address, for executors.
        port: its port.
        secret: known to the tasks of this job only.
        horovod: whether `import horovod` means tfring in the ranks.
    """

    address: str
    port: int
    secret: str
    horovod: bool


class Task(NamedTuple):
    """A running task.

    Attributes:
        partition: its number in the job.
        attempt: unique among all tasks of the program's Spark, including repeated ones.
        address: the address of its host.
        gpus: the GPUs that Spark gave to it.
    """

    partition: int
    attempt: int
    address: str
    gpus: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in messages and the launcher: its address follows "@"."""
        return f"task{self.attempt}@{self.address}"

    def message(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {**self._asdict(), "gpus": list(self.gpus)}

    @classmethod
    def of(cls, message: dict[str, Any]) -> Task:
        """Returns the task of a message."""
        return cls(**{**message, "gpus": tuple(message["gpus"])})
