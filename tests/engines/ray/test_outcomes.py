"""Which rank's error is told, whatever order the errors come in; no cluster is needed."""

import itertools

import pytest
import tensorflow as tf
from ray.exceptions import ActorDiedError, RayTaskError

from tfring.ray.outcomes import RanksFailed
from tfring.runtime._native import core


def _lost():
    with pytest.raises(core.CoreError) as caught:
        core.rank()
    error = caught.value
    error.code = 14  # what a collective raises when a rank was lost
    return error


def _of_task(cause):
    return RayTaskError("call", f"Traceback\n{cause}", cause).as_instanceof_cause()


_OVER = "generation 1 is over on rank 4, call init() to begin the next one: rank 2 ended"


class _Refused(Exception):
    code = error_code = 14  # a number of the user's own


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (_of_task(KeyError("the missing column")), "the function failed on rank 2:"),
        (_of_task(tf.errors.InvalidArgumentError(None, None, "splits")), "failed on rank 2:"),
        (_of_task(tf.errors.FailedPreconditionError(None, None, "no value")), "failed on rank 2:"),
        (_of_task(_Refused("by the database")), "the function failed on rank 2:"),
        (ActorDiedError(), "the process of rank 2 is gone:"),
    ],
)
def test_the_cause_comes_before_what_follows_from_it(cause, said):
    followers = {
        0: _of_task(_lost()),
        1: _of_task(tf.errors.AbortedError(None, None, "rank 2 has left")),
        4: _of_task(tf.errors.FailedPreconditionError(None, None, _OVER)),
    }
    for order in itertools.permutations([*followers.items(), (2, cause)]):
        text, _ = RanksFailed(dict(order), [3]).error()
        assert said in text.splitlines()[0], text
        assert "on rank 0: CoreError" in text and "on rank 1: AbortedError" in text
        assert text.endswith("ranks that did not end, so tfring ended them: 3")
