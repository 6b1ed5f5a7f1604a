"""Why a worker of an elastic job cannot go on, and what makes elastic.run begin again.

The latter two are also under Horovod's names in horovod.common.exceptions.
"""

from __future__ import annotations

from tfring.compat.exceptions import HorovodInternalError as HorovodInternalError
from tfring.compat.exceptions import HostsUpdatedInterrupt as HostsUpdatedInterrupt


class Dismissed(Exception):
    """This process has to leave the job.

    Attributes:
        code: What it exits with: 0 when the training is over, 76 when it has to leave before that,
            was taken for dead, or nobody answers.
        reason: Why.
    """

    def __init__(self, code: int, reason: str) -> None:
        """Keeps code and reason."""
        super().__init__(f"this worker has to leave the job with exit code {code}: {reason}")
        self.code = code
        self.reason = reason


class GenerationEnded(Exception):
    """The generation that was waited for has ended.

    Attributes:
        generation: Its number.
    """

    def __init__(self, generation: int) -> None:
        """Keeps the number."""
        super().__init__(f"generation {generation} ended before all its members were connected")
        self.generation = generation
