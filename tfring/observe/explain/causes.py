"""What can be wrong with a job, and how it is reported."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tfring.runtime.texts.times import time_text


class Cause(enum.Enum):
    """What is wrong. If several causes fit, the one that explains the others."""

    NOTHING = "nothing is wrong"
    OVER = "the job has ended without an error"
    KILLED = "a process is gone: killed, crashed, or ended without shutdown"
    LOST = "the other ranks could not reach a rank any more"
    STOPPED = "a process is stopped by a signal or a debugger"
    EXCEPTION = "a rank ended, or its step failed, with an exception"
    DISAGREE = "ranks call the same collective with different values"
    LEFT = "a rank has left the job while others need it"
    LINK = "data does not get from one rank to another"
    OTHER_BRANCH = "each rank makes calls that the others never make"
    EXTRA_CALL = "a rank makes a call that the others do not make"
    OTHER_ORDER = "a rank makes its calls in a different order, or leaves one out"
    NOT_CALLING = "a rank makes no call"
    SLOW = "the others wait for one rank in every step"
    FAILED = "the job has failed for another reason"


# The job is well.
WELL = (Cause.NOTHING, Cause.OVER, Cause.SLOW)
# Its ranks wait for each other.
DIFFERENT_CALLS = (Cause.OTHER_BRANCH, Cause.EXTRA_CALL, Cause.OTHER_ORDER)
# Its ranks are there and do not go on.
HANGS = (Cause.STOPPED, Cause.LINK, *DIFFERENT_CALLS, Cause.NOT_CALLING)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        cause: What.
        ranks: The ranks at fault if known, else all that take part.
        text: Sentences for a reader who knows nothing of the job.
        names: Of the tensors that it is about.
        advice: What to do.
        brief: The same in a few words; "": the text's first sentence.
        age: How long it has lasted, in nanoseconds; 0: unknown.
    """

    cause: Cause
    ranks: tuple[int, ...]
    text: str
    names: tuple[str, ...] = ()
    advice: str = ""
    brief: str = ""
    age: int = 0


@dataclass(frozen=True)
class RankLine:
    """Where some ranks are in the program.

    Attributes:
        ranks: Which ones.
        line: The line, as "train.py:40"; "": unknown.
        doing: What they do there, as "waits in allreduce of tensor 'loss'".
    """

    ranks: tuple[int, ...]
    line: str
    doing: str


@dataclass(frozen=True)
class Explanation(Finding):
    """What is wrong with a job. Its text is one paragraph: what, where, since when, what to do.

    Attributes:
        job: Its id.
        limit: The age at which it ends the job, in nanoseconds; 0: it does not.
        what: The text without the advice.
        evidence: What shows it, one sentence each.
        lines: Where each rank is in the program.
    """

    job: str = ""
    limit: int = 0
    what: str = ""
    evidence: tuple[str, ...] = ()
    lines: tuple[RankLine, ...] = ()

    def ends(self, age: int) -> str:
        """Returns "The job ends in 9 min 48 s if nothing changes" at an age; "" if it does not."""
        if not self.limit:
            return ""
        return f"The job ends in {time_text(max(0, self.limit - age) / 1e9)} if nothing changes"
