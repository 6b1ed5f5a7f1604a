"""Wrong calls: the tf.errors class and message that every rank gets; and the next call works."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfring

Call = Callable[..., Any]

REDUCING = ("allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter", "reduce")
ROOTED = ("reduce", "broadcast", "gather", "scatter")
GROUPED = ("grouped_allreduce", "grouped_allgather", "grouped_reducescatter")
SAME_SHAPE = ("allreduce", "grouped_allreduce", "reduce", "broadcast")  # scalars, too
COLLECTIVES = (
    *REDUCING,
    "allgather",
    "grouped_allgather",
    "broadcast",
    "gather",
    "scatter",
    "alltoall",
)

# What the ranks have to agree on: the odd one's argument, what the error says of both values, and
# which collectives have it. {few} and {many} are the numbers of rows with rows=2 and rows=4.
DISAGREEMENTS: dict[str, tuple[dict[str, Any], tuple[str, str], tuple[str, ...]]] = {
    "dtype": ({"dtype": tf.float64}, ("float32", "float64"), COLLECTIVES),
    "shape": ({"row": (4,)}, (", 3]", ", 4]"), COLLECTIVES),
    "rows": ({"rows": 4}, ("[{few}, 3]", "[{many}, 3]"), (*REDUCING, "broadcast")),
    "op": ({"op": tfring.Max}, ("Max", "Sum"), REDUCING),
    "prescale": ({"prescale": 0.5}, ("0.5", "0.25"), REDUCING),
    "root": ({"root": 1}, ("root 0", "root 1"), ROOTED),
}
PAIRS = [(call, what) for what, (_, _, calls) in DISAGREEMENTS.items() for call in calls]
# Every second one in a graph: the op makes the error when it runs.
CASES = [(call, what, number % 2 == 1) for number, (call, what) in enumerate(PAIRS)]


def run(
    call: str,
    name: str,
    x: Any,
    *,
    op: int = tfring.Sum,
    prescale: float = 0.25,
    postscale: float = 0.25,
    root: int = 0,
) -> Any:
    """Runs a collective with those of the arguments that it takes."""
    arguments: dict[str, Any] = {"name": name}
    if call in REDUCING:
        arguments |= {"op": op, "prescale_factor": prescale, "postscale_factor": postscale}
    if call in ROOTED:
        arguments |= {"root_rank": root}
    return getattr(tfring, call)([x, x] if call in GROUPED else x, **arguments)


def make(
    call: str,
    name: str,
    *,
    dtype: Any = tf.float32,
    rows: int = 2,
    row: tuple[int, ...] = (3,),
    **arguments: Any,
) -> Any:
    """Runs a collective with a tensor that all of them take, unless a test changes it."""
    return run(call, name, tf.ones([rows * tfring.size(), *row], dtype), **arguments)


def still_works(size: int) -> None:
    np.testing.assert_array_equal(tfring.allreduce(tf.ones(2), op=tfring.Sum), size)


FLAGS, TEXT = tf.constant([True]), tf.constant(["text"])
BAD_CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "allreduce bool": (
        lambda: tfring.allreduce(FLAGS, name="flags"),
        "tensor flags has dtype bool.*supported are float16",
    ),
    "grouped bool": (lambda: tfring.grouped_allreduce([FLAGS]), "dtype bool"),
    "sparse Min": (
        lambda: tfring.allreduce(
            tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0])), op=tfring.Min
        ),
        "Min",
    ),
    "broadcast root": (lambda: tfring.broadcast(tf.ones(2), "zero"), "zero"),
    "alltoall splits": (lambda: tfring.alltoall(tf.ones(2), [1.0]), "dtype float32"),
    "reducescatter bool": (lambda: tfring.reducescatter([True]), "dtype bool"),
    "reduce Adasum": (
        lambda: tfring.reduce(1.0, 0, op=tfring.Adasum),
        "Adasum works on whole tensors",
    ),
    "allreduce Adasum": (
        lambda: tfring.allreduce(1, op=tfring.Adasum),
        "op=Adasum does not support",
    ),
    "unknown op": (lambda: tfring.allreduce(1.0, op=9), "9 is not a reduce operation"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_a_refused_call_uses_up_no_name(case: str, rank: int, size: int) -> None:
    """One rank's refused call counts for no default name: the next calls get equal names."""
    call, message = BAD_CALLS[case]
    if rank == size - 1:
        with pytest.raises((TypeError, ValueError, NotImplementedError), match=message):
            call()
    ones = tf.ones(3)
    np.testing.assert_array_equal(tfring.allreduce(ones, op=tfring.Sum), size * ones)
    np.testing.assert_array_equal(tfring.grouped_allreduce([ones], op=tfring.Sum)[0], size * ones)
    np.testing.assert_array_equal(tfring.allgather(ones), tf.ones(3 * size))
    np.testing.assert_array_equal(tfring.broadcast(ones, 0), ones)
    np.testing.assert_array_equal(tfring.alltoall(tf.ones(size)), tf.ones(size))
    np.testing.assert_array_equal(tfring.reducescatter(tf.ones(size), op=tfring.Sum), [size])


def everybody_gets(
    error: type[Exception], call: Call, parts: tuple[str, ...], in_graph: bool
) -> None:
    """The call fails with this error, which contains the parts, and then one succeeds."""
    run = tf.function(call) if in_graph else call
    with pytest.raises(error) as caught:
        run()
    for part in parts:
        assert part in str(caught.value)
    still_works(tfring.size())


both = pytest.mark.parametrize("in_graph", [False, True])


@pytest.mark.parametrize(("call", "what", "in_graph"), CASES)
def test_disagreement(call: str, what: str, in_graph: bool, rank: int, several: int) -> None:
    """Every rank gets the error, which names the tensor, the ranks and the values."""
    argument, values, _ = DISAGREEMENTS[what]
    for odd, other in ((0, 1), (several - 1, 0)):
        name = f"m.{what}.{call}.{odd}"
        said = [value.format(few=2 * several, many=4 * several) for value in values]
        everybody_gets(
            tf.errors.FailedPreconditionError,
            functools.partial(make, call, name, **(argument if rank == odd else {})),
            (name, *said, f"rank {odd}", f"rank {other}" if several == 2 else f"ranks {other}"),
            in_graph,
        )


@both
def test_another_collective_of_the_same_name(in_graph: bool, rank: int, several: int) -> None:
    kinds = ("allgather", "allreduce")
    everybody_gets(
        tf.errors.FailedPreconditionError,
        lambda: make(kinds[rank != several - 1], "m.kind"),
        ("m.kind", *kinds, f"rank {several - 1}"),
        in_graph,
    )


@both
@pytest.mark.parametrize("call", GROUPED)
def test_lists_of_other_lengths(call: str, in_graph: bool, rank: int, several: int) -> None:
    tensors = [tf.ones(several)] * (2 if rank == several - 1 else 3)
    everybody_gets(
        tf.errors.FailedPreconditionError,
        lambda: getattr(tfring, call)(tensors, name=f"m.length.{call}"),
        (f"m.length.{call}", "2 on", "3 on", f"rank {several - 1}"),
        in_graph,
    )


ONES = tf.ones(2)
SLICES = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([1, 2]))
LISTS: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {
    "grouped sparse": (
        lambda x: tfring.grouped_allreduce(x, name="l.grouped"),
        [SLICES, ONES],
        [ONES, SLICES],
    ),
    "all sparse": (lambda x: tfring.grouped_allreduce(x, name="l.all"), [SLICES], [ONES]),
    "dtypes": (
        lambda x: tfring.grouped_allreduce(x, name="l.dtypes"),
        [ONES],
        [ONES, tf.ones(2, tf.int32)],
    ),
    "broadcast_variables": (
        lambda x: tfring.broadcast_variables(x, 0),
        [tf.Variable(1.0)],
        [tf.Variable(1.0), tf.Variable(1)],
    ),
    "broadcast_": (
        lambda x: tfring.broadcast_(x, 0, name="l.broadcast_"),
        [tf.Variable(1.0), tf.Variable(1)],
        [tf.Variable(1.0)],
    ),
}


@both
@pytest.mark.parametrize("case", LISTS)
def test_lists_of_other_kinds(case: str, in_graph: bool, rank: int, several: int) -> None:
    """A rank whose collective the others never call gets the error, too."""
    call, usual, odd = LISTS[case]
    mine = odd if rank == several - 1 else usual

    def run() -> Any:
        return tf.nest.flatten(call(mine), expand_composites=True)[:1] and tf.constant(0)

    parts = ("the ranks disagree on", f"rank {several - 1}")
    everybody_gets(tf.errors.FailedPreconditionError, run, parts, in_graph)


# The last rank alone passes wrong splits; every rank gets the error. Each case has the splits and a
# part of the message.
BAD_SPLITS: dict[str, tuple[Callable[[int], Any], str]] = {
    "sum": (lambda size: [1] * (size - 1) + [size], "splits add up to"),
    "negative": (lambda size: [-1] + [1] * (size - 1), "is -1: a number of rows is 0 or more"),
    "length": (lambda size: [1] * (size - 1) + [1, 0], "splits"),
    "matrix": (lambda size: [[1]] * size, "splits have to be a vector"),
    "64 bits": (lambda size: tf.constant([0] * (size - 1) + [1 << 40], tf.int64), "splits add up"),
}


@pytest.mark.any_ranks
@both
@pytest.mark.parametrize("case", BAD_SPLITS)
def test_bad_splits(case: str, in_graph: bool, rank: int, size: int) -> None:
    if case == "sum" and size == 1:
        pytest.skip("[1] is right with one rank")
    splits, text = BAD_SPLITS[case]
    name = f"splits.{case}"
    good = tf.constant([1] * size, tf.int64 if case == "64 bits" else tf.int32)
    mine = splits(size) if rank == size - 1 else good
    rows = tf.ones([size, 2])
    root = size - 1
    for call in (
        lambda: tfring.alltoall(rows, mine, name=f"{name}.alltoall"),
        lambda: tfring.scatter(rows, root, mine, name=f"{name}.scatter"),
    ):
        parts = (f"rank {root}", name, text)
        everybody_gets(tf.errors.InvalidArgumentError, call, parts, in_graph)


@pytest.mark.any_ranks
@both
def test_rows_that_cannot_be_cut_equally(in_graph: bool, rank: int, several: int) -> None:
    odd = rank == several - 1
    rows = tf.ones([several + (1 if odd else 0), 2])
    for name, call in {
        "uncut.alltoall": lambda: tfring.alltoall(rows, name="uncut.alltoall"),
        "uncut.scatter": lambda: tfring.scatter(rows, several - 1, name="uncut.scatter"),
    }.items():
        parts = (name, f"rank {several - 1}", str(several + 1))
        everybody_gets(tf.errors.InvalidArgumentError, call, parts, in_graph)


@pytest.mark.parametrize("call", [c for c in COLLECTIVES if c not in SAME_SHAPE])
def test_a_scalar_has_no_rows(call: str, rank: int, size: int) -> None:
    """Every rank gets the error, whether TensorFlow knows the shape when it traces or not."""

    def step(x: Any) -> Any:
        return run(call, f"scalar.{call}", x, root=size - 1)

    late = tf.function(step, input_signature=[tf.TensorSpec(None, tf.float32)])
    mine = tf.constant(1.0) if rank == size - 1 else tf.ones([size])
    parts = (f"scalar.{call}", f"rank {size - 1}", "reshape it to [1]")
    for function in (step, late, tf.function(step)):
        everybody_gets(
            tf.errors.InvalidArgumentError, functools.partial(function, mine), parts, False
        )


@both
@pytest.mark.parametrize("call", ROOTED)
def test_a_root_that_is_no_rank(call: str, in_graph: bool, rank: int, size: int) -> None:
    """The last rank alone names it; every rank gets the error."""
    everybody_gets(
        tf.errors.InvalidArgumentError,
        lambda: make(call, f"no.root.{call}", root=size if rank == size - 1 else 0),
        (f"no.root.{call}", f"rank {size - 1}", f"root rank {size}"),
        in_graph,
    )


@both
@pytest.mark.parametrize("call", COLLECTIVES)
def test_an_unknown_process_set(call: str, in_graph: bool, size: int) -> None:
    function = getattr(tfring, call)
    rows = [tf.ones([2, 2])] if call.startswith("grouped") else tf.ones([2, 2])
    root = {"root_rank": 0} if call in ROOTED else {}
    unknown = tfring.ProcessSet([0])
    unknown.process_set_id = 77
    everybody_gets(
        tf.errors.InvalidArgumentError,
        lambda: function(rows, process_set=unknown, **root),
        ("process set 77",),
        in_graph,
    )
    with pytest.raises(ValueError, match="not registered"):
        function(rows, process_set=tfring.ProcessSet([0]), **root)


SENDS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "dtype": (lambda: tfring.recv(0, tf.float64, name="p"), ("float32", "float64")),
    "shape": (lambda: tfring.recv(0, tf.float32, [None, 4], name="p"), ("[2, 3]", "[-1, 4]")),
    "dimensions": (lambda: tfring.recv(0, tf.float32, [6], name="p"), ("[2, 3]", "[6]")),
}


@pytest.mark.any_ranks
@both
@pytest.mark.parametrize("case", SENDS)
def test_send_and_recv_disagree(case: str, in_graph: bool, rank: int, several: int) -> None:
    recv, parts = SENDS[case]

    def send() -> None:
        tfring.send(tf.ones([2, 3]), 1, name="p")

    if rank > 1:
        if in_graph:  # the step of ranks 0 and 1 failed, and might have waited for this rank later
            with pytest.raises(tf.errors.AbortedError, match=r"p\.0to1"):
                still_works(several)
        return still_works(several)
    call = recv if rank else send
    everybody_gets(tf.errors.FailedPreconditionError, call, ("p.0to1", *parts), in_graph)


@pytest.mark.any_ranks
@both
def test_sparse_on_some_ranks_only(rank: int, several: int, in_graph: bool) -> None:
    def step() -> Any:
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
        return tfring.allreduce(rows if rank else tf.ones([4, 2]), name=f"mixed.{in_graph}")

    words = ("the kind of collective", "allgather", "allreduce on rank 0")
    everybody_gets(tf.errors.FailedPreconditionError, step, words, in_graph)


@both
def test_sparse_ops_that_differ(rank: int, several: int, in_graph: bool) -> None:
    def step() -> Any:
        rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
        op = tfring.Average if rank else tfring.Sum
        return tfring.allreduce(rows, name=f"sparse.op.{in_graph}", op=op).values

    words = ("the reduce op", "Sum on rank 0", "Average")
    everybody_gets(tf.errors.FailedPreconditionError, step, words, in_graph)
