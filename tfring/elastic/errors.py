"""Why a worker of an elastic job cannot go on, and what makes elastic.run begin again.

horovod.common.exceptions has the latter, HorovodInternalError and HostsUpdatedInterrupt, too.
"""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A program raises it to let `elastic.run` go back to the last commit.

    tfring itself raises tf.errors where a collective fails; `elastic.run` handles these, too.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks are about to come or go; `commit` raises it, and `elastic.run` handles it."""

    def __init__(self, skip_sync: bool = False) -> None:
        """With `skip_sync` no rank needs the state of another."""
        super().__init__()
        self.skip_sync = skip_sync


class Dismissed(Exception):
    """This process has to leave the job, for a `reason`.

    It exits with `code`: 0 when the training is over, 76 when it must leave before that, was
    taken for dead, or gets no answer.
    """

    def __init__(self, code: int, reason: str) -> None:
        """Keeps code and reason."""
        super().__init__(f"this worker has to leave the job with exit code {code}: {reason}")
        self.code = code
        self.reason = reason


class GenerationEnded(Exception):
    """The generation that was waited for, of this number, has ended."""

    def __init__(self, generation: int) -> None:
        """Keeps the number."""
        super().__init__(f"generation {generation} ended before all its members were connected")
        self.generation = generation
