"""Gradients of the collectives.

A rank differentiates its own loss, but its tensors also reach the losses of others. The parameter
`gradient` of a call says which loss of the whole job a gradient belongs to, as a factor of the
gradient of the sum of all ranks' losses; N is the number of ranks:

    gradient=        "sum"   "mean"   "horovod"
    allgather          1      1/N        1/N
    broadcast          1      1/N        1/N
    alltoall           1      1/N         1
    reducescatter      1      1/N         N

- "sum", the default, is right if a tape or an optimizer averages the gradients of variables over
  the ranks. Together they give the gradient of the mean of all ranks' losses: the loss of one
  process with all data.
- "mean" is right if nothing averages them afterwards and all ranks compute one loss.
- "horovod", the default under `import horovod`, is what Horovod does. Behind an averaging tape the
  gradient through an allgather or broadcast counts 1/N.

Other collectives have no choice: allreduce and those with a root have the gradient of the sum of
all ranks' losses. Horovod has none of those with a root, so these gradients are the analytic ones.
Every rank has to differentiate the call: its loss must contain its own result, even zeros and empty
tensors.

If ranks are weighted by what their losses are divided by, each loss is multiplied by its weight:
see tfring.ops.backward.

Every gradient is a collective itself: all ranks must differentiate the same call. It is named after
the call, with "grad." before it. Importing tfring.collectives registers the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfring.ops import backward, builders, channels, library, names, reduce_ops, xla
from tfring.ops.reduce_ops import Average, Max, Min, Product, Sum

_Gradient = TypeVar("_Gradient", bound=Callable[[Any, list[Any], str], list[Any]])

# The gradient of the sum of all ranks' losses is divided by N this many times; -1: multiplied.
_DIVISIONS = {
    "TfringAllgather": {"sum": 0, "mean": 1, "horovod": 1},
    "TfringBroadcast": {"sum": 0, "mean": 1, "horovod": 1},
    "TfringAlltoall": {"sum": 0, "mean": 1, "horovod": 0},
    "TfringReducescatter": {"sum": 0, "mean": 1, "horovod": -1},
}

# Names of collectives in graphs that average the gradient of a gather or broadcast.
averaging: set[str] = set()


def gradient_of(op_type: str) -> Callable[[_Gradient], _Gradient]:
    """Registers the decorated function as the gradient of an op; once per process.

    The function takes three arguments. First the operation: its inputs are one or more tensors,
    splits if it has them, and the channel. Then a list of one gradient for each output, of its
    dtype; zeros for an unused output, because the other ranks expect them. Last the name of the
    gradient's collective; names of further collectives begin with it. It returns one gradient for
    each tensor, of its shape.
    """

    def register(gradient: _Gradient) -> _Gradient:
        def of_all_inputs(op: Any, *grads: Any) -> list[Any]:
            # A user's output_gradients may have another dtype.
            dense = [
                tf.zeros_like(out)
                if grad is None
                else tf.cast(tf.convert_to_tensor(grad), out.dtype)
                for grad, out in zip(grads, op.outputs, strict=True)
            ]
            name = names.gradient_name(tensor_name(op))
            found = backward.weighted(dense, lambda own: gradient(op, own, name))
            return [*found, *[None] * (len(op.inputs) - len(found))]

        tf.RegisterGradient(op_type)(xla.compiled_gradient(of_all_inputs, channels.in_chain))
        return gradient

    return register


@gradient_of("TfringSend")
@gradient_of("TfringRecv")
@gradient_of("TfringBarrier")
@gradient_of("TfringJoin")
def no_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """Raises NotImplementedError: this collective cannot be differentiated."""
    del grads, name
    raise NotImplementedError(
        f"{op.type} (tensor {tensor_name(op)}) has no gradient. Put tf.stop_gradient around its "
        "input or result, or use a collective that has one (allgather, alltoall, broadcast)"
    )


@gradient_of("TfringAllreduce")
def allreduce_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringAllreduce, by reduce operation.

    - Sum: Sum-allreduce of the gradients: of the sum of all ranks' losses.
    - Average: Average-allreduce of the gradients: of the sum of all ranks' losses, where each rank
      has its share 1/N of the average. Horovod's rule is "the same operation and factors".
    - Min, Max: of the sum of all ranks' losses. The ranks that hold the extremum share it equally.
    - Product: of the sum of all ranks' losses, exact even if a factor is zero.
    - Adasum: none.

    Raises:
        NotImplementedError: the operation is Adasum.
    """
    kind = reduction(op)
    if kind in (Sum, Average):
        return builders.allreduce_op(
            grads,
            name=name,
            op=kind,
            prescale=factor(op, "prescale_factor"),
            postscale=factor(op, "postscale_factor"),
            process_set_id=process_set(op),
            group=bool(op.get_attr("group")),
        )
    totals = builders.allreduce_op(grads, name=name, op=Sum, process_set_id=process_set(op))
    return gradients_of_selection(op, list(op.inputs[:-1]), list(op.outputs), totals, name)


@gradient_of("TfringAllreduceDone")
def allreduce_done_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """Passes the gradients on: TfringAllreduceStart has the gradient of both."""
    del op, name
    return grads


@gradient_of("TfringAllreduceStart")
def allreduce_start_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """As allreduce_gradient, for Sum and Average: only these need no result of the reduction.

    Raises:
        NotImplementedError: any other operation.
    """
    if reduction(op) in (Sum, Average):
        return allreduce_gradient(op, grads, name)
    raise NotImplementedError(
        f"tensor {tensor_name(op)}: {reduce_ops.name_of(reduction(op))} has no gradient in a "
        "function with jit_compile=True. Use jit_compile=False"
    )


def gradients_of_selection(
    op: Any, tensors: list[Any], results: list[Any], totals: list[Any], name: str
) -> list[Any]:
    """Passes the analytic gradients of a Min, Max or Product to the tensors.

    Args:
        op: the operation.
        tensors: its inputs.
        results: the reduced inputs, of the inputs' shapes.
        totals: the gradients of `results`, summed over all losses.
        name: of the gradient's collective.

    Raises:
        NotImplementedError: the operation is Adasum.
    """
    totals = [tf.cast(total, tensor.dtype) for total, tensor in zip(totals, tensors, strict=True)]
    if reduction(op) in (Min, Max):
        return _extremum_gradients(op, tensors, results, totals, name)
    if reduction(op) == Product:
        return _product_gradients(op, tensors, totals, name)
    raise NotImplementedError(
        f"tensor {tensor_name(op)}: {reduce_ops.name_of(reduction(op))} has no gradient. Use "
        "op=Average or op=Sum to differentiate the result, or put tf.stop_gradient around it"
    )


def _extremum_gradients(
    op: Any, tensors: list[Any], extrema: list[Any], totals: list[Any], name: str
) -> list[Any]:
    prescale, postscale = factor(op, "prescale_factor"), factor(op, "postscale_factor")
    if prescale != 1.0 or postscale != 1.0:
        # The scaled outputs may be rounded, so compare with unscaled extrema. A negative prescale
        # reverses the order.
        kind = reduction(op)
        if prescale < 0:
            kind = Min if kind == Max else Max
        extrema = builders.allreduce_op(
            tensors, name=f"{name}.extrema", op=kind, process_set_id=process_set(op)
        )
    holds = [
        tf.cast(tf.equal(tensor, extremum), tensor.dtype)
        for tensor, extremum in zip(tensors, extrema, strict=True)
    ]
    holders = builders.allreduce_op(
        holds, name=f"{name}.holders", op=Sum, process_set_id=process_set(op)
    )
    return [
        hold * total / count * tf.constant(prescale * postscale, total.dtype)
        for hold, total, count in zip(holds, totals, holders, strict=True)
    ]


def _product_gradients(op: Any, tensors: list[Any], totals: list[Any], name: str) -> list[Any]:
    prescale, postscale = factor(op, "prescale_factor"), factor(op, "postscale_factor")
    set_id = process_set(op)
    [ranks] = builders.allgather_op(
        [tf.expand_dims(rank(), 0)], name=f"{name}.ranks", process_set_id=set_id
    )
    position = tf.math.count_nonzero(ranks < rank(), dtype=tf.int32)
    # The product of the others, without a division: a factor may be zero.
    all_factors = builders.allgather_op(
        [tf.expand_dims(tensor * tf.constant(prescale, tensor.dtype), 0) for tensor in tensors],
        name=f"{name}.factors",
        process_set_id=set_id,
    )
    results = []
    for tensor, total, factors in zip(tensors, totals, all_factors, strict=True):
        before = tf.math.cumprod(factors, axis=0, exclusive=True)
        after = tf.math.cumprod(factors, axis=0, exclusive=True, reverse=True)
        others = tf.gather(before * after, position)
        results.append(
            tf.ensure_shape(
                total * others * tf.constant(prescale * postscale, total.dtype), tensor.shape
            )
        )
    return results


@gradient_of("TfringAllgather")
def allgather_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringAllgather.

    An allreduce of the outputs' gradients, of which each rank keeps its own rows. To find them, the
    ranks exchange their numbers of rows when the gradient runs.
    """
    tensors = list(op.inputs[:-1])
    set_id = process_set(op)
    rows = tf.stack([tf.shape(tensor, out_type=tf.int64)[0] for tensor in tensors])
    # Each rank sends its rank and its rows, so any ranks may take part.
    mine = tf.expand_dims(tf.concat([[tf.cast(rank(), tf.int64)], rows], 0), 0)
    [everybody] = builders.allgather_op([mine], name=f"{name}.rows", process_set_id=set_id)
    before = everybody[:, :1] < tf.cast(rank(), tf.int64)
    starts = tf.reduce_sum(tf.where(before, everybody, tf.zeros_like(everybody)), axis=0)[1:]
    totals = _over_ranks(op, grads, name)
    return [
        tf.ensure_shape(_rows_from(total, starts[i], tensor), tensor.shape)
        for i, (total, tensor) in enumerate(zip(totals, tensors, strict=True))
    ]


def _rows_from(total: Any, start: Any, tensor: Any) -> Any:
    """Returns as many rows as `tensor` has, in a form that shows XLA a fixed number."""
    begin = tf.concat([[start], tf.zeros([tf.rank(tensor) - 1], tf.int64)], 0)
    return tf.slice(total, begin, tf.shape(tensor, out_type=tf.int64))


@gradient_of("TfringBroadcast")
def broadcast_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringBroadcast: allreduce of the gradients on the root, zeros elsewhere."""
    is_root = tf.equal(rank(), int(op.get_attr("root_rank")))
    totals = _over_ranks(op, grads, name)
    return [tf.where(is_root, total, tf.zeros_like(total)) for total in totals]


@gradient_of("TfringAlltoall")
def alltoall_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringAlltoall: each row's gradient goes back to the row's sender.

    An alltoall with the received splits.
    """
    back, _ = builders.alltoall_op(
        grads[0], op.outputs[1], name=name, process_set_id=process_set(op)
    )
    return [tf.ensure_shape(_divided(op, back), op.inputs[0].shape)]


@gradient_of("TfringReducescatter")
def reducescatter_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringReducescatter: the allgather of the gradients.

    With Horovod's factor, an allgather of the result in Horovod's convention has the gradient of an
    allreduce of the same operation.

    - Sum: the allgather of the gradients.
    - Average: the same, divided by the number of ranks.
    - Min, Max, Product: as allreduce_gradient.

    The factors of the call apply to the gradient as well.
    """
    tensors = list(op.inputs[:-1])
    set_id = process_set(op)
    inner = "horovod" if convention(op) == "horovod" else "sum"
    totals = builders.allgather_op(grads, name=name, process_set_id=set_id, gradient=inner)
    kind = reduction(op)
    further = 1 if kind == Average else 0
    totals = [_divided(op, total, further) for total in totals]
    if kind in (Sum, Average):
        scale = factor(op, "prescale_factor") * factor(op, "postscale_factor")
        results = [total * tf.constant(scale, total.dtype) for total in totals]
    else:
        whole = builders.allgather_op(
            list(op.outputs), name=f"{name}.results", process_set_id=set_id
        )
        results = gradients_of_selection(op, tensors, whole, totals, name)
    return [tf.ensure_shape(r, t.shape) for r, t in zip(results, tensors, strict=True)]


@gradient_of("TfringReduce")
def reduce_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringReduce: of the sum of all ranks' losses.

    Only the root's loss depends on the tensors; the zeros of the others are constants. So it is the
    root's gradient, broadcast. For Average it is divided by the number of ranks that took part.
    Min, Max and Product share it as in allreduce_gradient. The factors of the call
    multiply it.
    """
    set_id, root = process_set(op), int(op.get_attr("root_rank"))
    totals = builders.broadcast_op(grads, name=name, root_rank=root, process_set_id=set_id)
    kind = reduction(op)
    if kind not in (Sum, Average):
        results = builders.broadcast_op(
            list(op.outputs), name=f"{name}.results", root_rank=root, process_set_id=set_id
        )
        return gradients_of_selection(op, list(op.inputs[:-1]), results, totals, name)
    scale = factor(op, "prescale_factor") * factor(op, "postscale_factor")
    scaled = [total * tf.constant(scale, total.dtype) for total in totals]
    if kind == Average:
        # The number of ranks that take part in this collective.
        [count] = builders.allreduce_op(
            [tf.constant(1)], name=f"{name}.count", op=Sum, process_set_id=set_id
        )
        scaled = [total / tf.cast(count, total.dtype) for total in scaled]
    return scaled


@gradient_of("TfringGather")
def gather_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringGather: of the sum of all ranks' losses.

    Each rank gets the gradient of its rows from the root: a scatter.
    """
    tensor = op.inputs[0]
    set_id, root = process_set(op), int(op.get_attr("root_rank"))
    rows = tf.shape(tensor, out_type=tf.int64)[:1]
    all_rows = builders.gather_op(rows, name=f"{name}.rows", root_rank=root, process_set_id=set_id)
    mine = builders.scatter_op(grads[0], all_rows, name=name, root_rank=root, process_set_id=set_id)
    return [tf.ensure_shape(mine, tensor.shape)]


@gradient_of("TfringScatter")
def scatter_gradient(op: Any, grads: list[Any], name: str) -> list[Any]:
    """The gradient of TfringScatter: of the sum of all ranks' losses.

    The root gets the gradients of all rows: a gather. The other ranks' tensors are not used, so
    their gradients are zeros.
    """
    tensor = op.inputs[0]
    set_id, root = process_set(op), int(op.get_attr("root_rank"))
    gathered = builders.gather_op(grads[0], name=name, root_rank=root, process_set_id=set_id)
    # The other ranks get no rows, so all their gradients are zeros.
    missing = tf.zeros_like(tensor)[tf.shape(gathered)[0] :]
    return [tf.ensure_shape(tf.concat([gathered, missing], 0), tensor.shape)]


def _over_ranks(op: Any, grads: list[Any], name: str) -> list[Any]:
    """Allreduces the gradients of a gather or broadcast in the convention of the call."""
    kind = Average if _DIVISIONS[op.type][convention(op)] else Sum
    if kind == Average and not tf.executing_eagerly():
        averaging.add(name)
    return in_pairs(
        grads,
        lambda reals: builders.allreduce_op(
            reals, name=name, op=kind, process_set_id=process_set(op)
        ),
    )


def in_pairs(tensors: list[Any], reduce: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """Reduces tensors of one dtype; complex tensors are sent as pairs of real numbers.

    Args:
        tensors: of any dtype.
        reduce: takes and returns tensors of real dtypes.
    """
    if not tensors or not tensors[0].dtype.is_complex:
        return reduce(tensors)
    return [as_complex(pair) for pair in reduce([as_pair(tensor) for tensor in tensors])]


def as_pair(tensor: Any) -> Any:
    """Returns real and imaginary part of a complex tensor as one real tensor."""
    return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)])


def as_complex(pair: Any) -> Any:
    """Returns the complex tensor from which `as_pair` made this one."""
    return tf.complex(pair[0], pair[1])


def _divided(op: Any, total: Any, further: int = 0) -> Any:
    """Divides a gradient of the sum of all losses by powers of N: the convention's, and more."""
    power = _DIVISIONS[op.type][convention(op)] + further
    if power == 0:
        return total
    ranks = tf.cast(library.load().tfring_size(process_set_id=process_set(op)), total.dtype)
    return total * ranks if power < 0 else total / ranks**power


def rank() -> Any:
    """The world rank, read when the gradient runs."""
    return library.load().tfring_rank()


def tensor_name(op: Any) -> str:
    """The name of the call."""
    return str(tf.compat.as_str(op.get_attr("tensor_name")))


def reduction(op: Any) -> int:
    """The reduce operation's number."""
    return int(op.get_attr("reduce_op"))


def factor(op: Any, attribute: str) -> float:
    """A scale factor, which travels as text."""
    return float(tf.compat.as_str(op.get_attr(attribute)))


def process_set(op: Any) -> int:
    """The id of the process set."""
    return int(op.get_attr("process_set_id"))


def convention(op: Any) -> str:
    """The name of the convention: a column of the table above."""
    return str(tf.compat.as_str(op.get_attr("gradient")))


@tf.RegisterGradient("TfringScaled")  # type: ignore[untyped-decorator]
def _gradient_of_scaled(op: Any, grad: Any) -> list[Any]:
    tensor, factor = op.inputs
    products = tf.cast(tf.math.real(grad * tf.math.conj(tensor)), tf.float32)
    return [library.load().tfring_scaled(tensor=grad, factor=factor), tf.reduce_sum(products)]
