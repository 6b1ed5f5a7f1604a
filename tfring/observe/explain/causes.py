"""What can be wrong with a job, and how it is said."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tfring.runtime.texts.times import time_text


class Cause(enum.Enum):
    """What is wrong. Where several are, the one that explains the others."""

    NOTHING = "nothing is wrong"
    OVER = "the job has ended without an error"
    KILLED = "a process is gone: killed, crashed, or ended without shutdown"
    LOST = "the other ranks could not reach a rank any more"
    STOPPED = "a process is stopped by a signal or a debugger"
    EXCEPTION = "a rank ended, or its step failed, with an exception"
    DISAGREE = "ranks call the same collective with other values"
    LEFT = "a rank has left the job while others need it"
    LINK = "data does not get from one rank to another"
    OTHER_BRANCH = "ranks make calls that the others never make, each others"
    EXTRA_CALL = "a rank makes a call that the others do not make"
    OTHER_ORDER = "a rank makes its calls in another order, or leaves one out"
    NOT_CALLING = "a rank makes no call"
    SLOW = "the others wait for one rank in every step"
    FAILED = "the job has failed otherwise"


# The job is well.
WELL = (Cause.NOTHING, Cause.OVER, Cause.SLOW)
# Its ranks are there and do not go on.
HANGS = (
    Cause.STOPPED,
    Cause.LINK,
    Cause.OTHER_BRANCH,
    Cause.EXTRA_CALL,
    Cause.OTHER_ORDER,
    Cause.NOT_CALLING,
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        cause: What.
        ranks: Where: those at fault, as far as that is known, else all that take part.
        names: Of the tensors that it is about.
        text: Sentences for a reader who knows nothing of the job.
        advice: What to do.
        brief: The same in a few words; "": the text's first sentence.
        age: For how long it has been so, in nanoseconds; 0: not known.
    """

    cause: Cause
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    text: str
    advice: str
    brief: str = ""
    age: int = 0


@dataclass(frozen=True)
class Explanation:
    """What is wrong with a job.

    Attributes:
        job: Its id.
        cause: What, see Cause.
        ranks: Where.
        names: Of the tensors that it is about.
        text: One paragraph: what, where, since when, and what to do.
        what: The same without what to do.
        advice: What to do; "": nothing is known.
        brief: What and where in a few words.
        age: For how long it has been so, in nanoseconds; 0: not known.
        limit: At which age it ends the job, in nanoseconds; 0: it does not.
    """

    job: str
    cause: Cause
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    text: str
    brief: str = ""
    age: int = 0
    limit: int = 0
    what: str = ""
    advice: str = ""

    def ends(self, age: int) -> str:
        """Returns "The job ends in 9 min 48 s if nothing changes"; "" if it does not.

        Args:
            age: For how long it has been so by now, in nanoseconds.
        """
        if not self.limit:
            return ""
        return f"The job ends in {time_text(max(0, self.limit - age) / 1e9)} if nothing changes"
