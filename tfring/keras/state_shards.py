"""StateShards: the part of an optimizer's work that one rank does (shard_states=True).

The optimizer of each rank is built for *parts* in place of the model's variables: flat variables
with 1/N of the elements (training/shards.py). So its states have 1/N of their size. A step

1. gives each part the present values of its variable, which may have been loaded or assigned;
2. lets the optimizer update the parts with the reduced gradients of the same elements;
3. gathers the parts of all ranks into the model's variables.

The optimizer takes a part for its variable: `_var_key` gives both one key, so that
`exclude_from_weight_decay` and `apply` know the model's variables.

A saved optimizer is whole: `gathered` brings the states of all ranks to the first one, and each
rank takes its parts of what it loads.

Local variables, and those that are overwritten with their gradient, are their own parts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring.collectives import allreduce, buckets, rooted
from tfring.collectives.variables import PART
from tfring.keras import facts
from tfring.ops import builders, reduce_ops
from tfring.runtime import process_sets, topology
from tfring.runtime.keras_version import replaceable
from tfring.training import gate
from tfring.training.local_variables import LocalVariables
from tfring.training.options import ReduceOptions
from tfring.training.shards import Shards

# Optimizers that treat each element of a variable by itself.
_ELEMENTWISE = (
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Nadam",
    "Ftrl",
    "Lion",
)


@dataclasses.dataclass(frozen=True)
class ShardedState:
    """A state of which each rank has a part: a momentum, for example."""

    own: Any  # the variable with this rank's part
    of: Any  # the variable of the model to which it belongs
    shards: Shards
    members: process_sets.ProcessSet

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole state."""
        return tuple(self.of.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the state."""
        return self.own.dtype

    @property
    def path(self) -> str:
        """Its name, for messages."""
        return str(self.own.path)

    def gather(self, root: int, name: str) -> Any:
        """Returns the whole state on one rank, None on the others; a collective."""
        value = tf.convert_to_tensor(self.own.value)
        parts = rooted.gather(
            value, root, name=name, process_set=self.members, ignore_name_scope=True
        )
        if topology.rank() != root:
            return None
        return self.shards.whole(parts, tf.TensorShape(self.shape)).numpy()

    def scatter(self, whole: Any, root: int, name: str) -> None:
        """Gives each rank its part of the whole state that one rank has; a collective."""
        own = tf.convert_to_tensor(self.own.value)
        parts = self.shards.flat(tf.convert_to_tensor(whole)) if topology.rank() == root else own
        part = rooted.scatter(
            parts, root, name=name, process_set=self.members, ignore_name_scope=True
        )
        self.own.assign(part)


class StateShards:
    """The parts for which one optimizer is built, of one rank."""

    def __init__(
        self,
        optimizer: Any,
        options: ReduceOptions,
        local: LocalVariables,
        name: Callable[[], str],
    ) -> None:
        """Prepares them; `build` makes the parts when the optimizer is built.

        `name` returns what the names of collectives start with.
        """
        _check(optimizer, options)
        self._name = name
        self._optimizer = optimizer
        self._members = options.members
        self._local = local
        self._build: Callable[[list[Any]], None] = optimizer.build
        self._key: Callable[[Any], Any] = replaceable(optimizer, "_var_key", "shard_states=True")
        self._finalize: Callable[[Any], None] = optimizer.finalize_variable_values
        self.shards = Shards(self._members.size(), self._members.rank())
        self._wholes: dict[Any, Any] = {}  # by key of the variable
        self._parts: dict[Any, Any] = {}
        self._keys: dict[Any, Any] = {}  # key of the variable by key of its part
        self._gathered: list[Any] | None = None  # values of all states, while they are saved

    def methods(self) -> dict[str, Any]:
        """Returns the replacements of the optimizer's methods."""
        return {
            "build": self.build,
            "_var_key": self.key,
            "finalize_variable_values": self.finalize,
            "save_own_variables": self.save,
            "load_own_variables": self.load,
        }

    def key(self, variable: Any) -> Any:
        """Replaces `optimizer._var_key`: a part has the key of its variable."""
        key = self._key(variable)
        return self._keys.get(key, key)

    def build(self, variables: Iterable[Any]) -> None:
        """Replaces `optimizer.build`."""
        if self._parts:
            return
        variables = list(variables)
        local = self._local.positions(variables)
        with tf.init_scope():
            for position, variable in enumerate(variables):
                own = position in local or getattr(variable, "overwrite_with_gradient", False)
                part = variable if own else self._part_of(variable)
                key = self._key(variable)
                self._wholes[key], self._parts[key] = variable, part
                self._keys[self._key(part)] = key
        self._build([self._parts[self._key(v)] for v in variables])
        for state in self.states().values():
            setattr(state.own, PART, True)

    def _part_of(self, variable: Any) -> Any:
        """Makes a part. `refresh` gives it values: a function that is traced may not have any."""
        size = self.shards.part_size(tf.TensorShape(variable.shape).num_elements())
        name = str(variable.name).replace("/", "_")  # a tf.Variable may have a path
        part = keras.Variable(tf.zeros([size], variable.dtype), dtype=variable.dtype, name=name)
        part._path = getattr(variable, "path", name)
        setattr(part, facts.WHOLE, variable)
        return part

    def is_sharded(self, variable: Any) -> bool:
        """Returns whether this rank has only a part of a variable of the model."""
        key = self._key(variable)
        return self._parts[key] is not self._wholes[key]

    def refuse_cut(self, variable: Any) -> None:
        """Raises RuntimeError if the states of a variable of the model are cut already."""
        key = self._key(variable)
        if key in self._parts and self.is_sharded(variable):
            raise RuntimeError(
                f"register_local_var: optimizer {self._optimizer.name!r} has a part of the states "
                "of this variable already (shard_states=True).\nRegister local variables before "
                "the optimizer is built."
            )

    def parts_of(self, variables: Iterable[Any]) -> list[Any]:
        """Returns the parts of variables of the model."""
        return [self._parts[self._key(v)] for v in variables]

    def wholes_of(self, parts: Iterable[Any]) -> list[Any]:
        """Returns the model's variables of some parts."""
        return [self._wholes[self.key(part)] for part in parts]

    def refresh(self, variables: Iterable[Any]) -> None:
        """Gives the parts the values of their variables."""
        for variable in variables:
            if self.is_sharded(variable):
                (part,) = self.parts_of([variable])
                part.assign(self.shards.part(tf.convert_to_tensor(variable)))

    def gather(self, variables: Sequence[Any], name: str) -> None:
        """Gives the variables the values of all ranks' parts."""
        sharded = [v for v in variables if self.is_sharded(v)]
        specs = tuple(buckets.TensorSpec(v.dtype, _bytes_of(v)) for v in reversed(sharded))
        ordered = list(reversed(sharded))
        process_set = process_sets.checked_id(self._members)
        for bucket in buckets.cut_buckets(specs):
            chosen = [ordered[position] for position in bucket.positions]
            values = [tf.convert_to_tensor(part.value) for part in self.parts_of(chosen)]
            gathered = builders.allgather_op(
                values,
                name=f"{name}.weights.{bucket.index}",
                process_set_id=process_set,
                group=True,
            )
            for variable, parts in zip(chosen, gathered, strict=True):
                variable.assign(self.shards.whole(parts, tf.TensorShape(variable.shape)))

    def constrain(self, variables: Iterable[Any]) -> None:
        """Applies constraints of weights, which need whole ones."""
        for variable in variables:
            constraint = getattr(variable, "constraint", None)
            if constraint is not None and self.is_sharded(variable):
                variable.assign(constraint(variable))

    def cut(self, gradients: list[Any], variables: list[Any], without: list[int]) -> list[Any]:
        """Returns this rank's parts of reduced gradients, except at some positions."""
        parts = list(gradients)
        for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if position not in without and gradient is not None and self.is_sharded(variable):
                parts[position] = self.shards.part(tf.convert_to_tensor(gradient))
        return parts

    def clip(self, gradients: list[Any], name: str) -> list[Any]:
        """Clips by norms that are those of whole gradients, as the optimizer would."""
        optimizer = self._optimizer
        kind = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
        squares = tf.stack([tf.reduce_sum(tf.square(tf.cast(g, kind))) for g in gradients])
        squares = allreduce.allreduce(
            squares,
            op=reduce_ops.Sum,
            name=f"{name}.norms",
            process_set=self._members,
            ignore_name_scope=True,
        )
        if optimizer.clipnorm:
            limit = tf.cast(optimizer.clipnorm, squares.dtype)
            factors = tf.unstack(limit / tf.maximum(tf.sqrt(squares), limit))
            return [g * tf.cast(f, g.dtype) for g, f in zip(gradients, factors, strict=True)]
        norm = tf.cast(tf.sqrt(tf.reduce_sum(squares)), gradients[0].dtype)
        clipped, _ = tf.clip_by_global_norm(gradients, optimizer.global_clipnorm, use_norm=norm)
        return list(clipped)

    def finalize(self, variables: Iterable[Any]) -> None:
        """Replaces `optimizer.finalize_variable_values`: the model gets the moving averages."""
        if self._optimizer.use_ema:
            variables = list(variables)
            self._finalize(self.parts_of(variables))
            self.gather(variables, self._name())

    def states(self) -> dict[int, ShardedState]:
        """Returns the states of which this rank has a part, by the ids of their variables."""
        cut = [v for v in self._wholes.values() if self.is_sharded(v)]
        slots = facts.slots_of(self._optimizer, cut)
        return {id(own): ShardedState(own, of, self.shards, self._members) for _, of, own in slots}

    @property
    def _root(self) -> int:
        return self._members.ranks[0] if self._members.ranks else 0

    @contextlib.contextmanager
    def gathered(self, name: str) -> Iterator[None]:
        """Lets the first rank save the optimizer in the block; a collective."""
        sharded, root = self.states(), self._root
        values: list[Any] = []
        for number, own in enumerate(self._optimizer.variables):
            state = sharded.get(id(own))
            values.append(own.numpy() if state is None else state.gather(root, f"{name}.{number}"))
        self._gathered = values
        try:
            yield
        finally:
            self._gathered = None

    def save(self, store: Any, outer: Sequence[Any] = ()) -> None:
        """Replaces `optimizer.save_own_variables`.

        `outer` are the variables of a LossScaleOptimizer around it, which come first.
        """
        if self._gathered is None and self.states():
            raise RuntimeError(
                f"rank {topology.rank()} has only its part of the states of optimizer "
                f"{self._optimizer.name!r}, and saves them alone.\nCall "
                "hvd.save_model(model, path) on all ranks: it gathers them, and rank 0 writes."
            )
        own = self._gathered or [variable.numpy() for variable in self._optimizer.variables]
        for number, value in enumerate([*(variable.numpy() for variable in outer), *own]):
            store[str(number)] = value

    def load(self, store: Any, outer: Sequence[Any] = ()) -> None:
        """Replaces `optimizer.load_own_variables`; takes whole states."""
        values = [store[key] for key in sorted(store.keys(), key=int)]
        for variable, value in zip(outer, values, strict=False):
            variable.assign(value)
        self.take(values[len(outer) :])

    def take(self, values: Sequence[Any]) -> None:
        """Gives the optimizer its states.

        Args:
            values: arrays of whole states, in the order of `optimizer.variables`.

        Raises:
            ValueError: they are of another optimizer, or of other variables.
        """
        known, sharded = self._optimizer.variables, self.states()
        wanted = [tuple(sharded.get(id(own), own).shape) for own in known]
        given = [np.shape(value) for value in values]
        if wanted != given:
            raise ValueError(
                f"optimizer {self._optimizer.name!r} has {len(wanted)} states of shapes {wanted}, "
                f"and the saved one {len(given)} of shapes {given}"
            )
        for own, value in zip(known, values, strict=True):
            whole = tf.convert_to_tensor(np.asarray(value))
            own.assign(self.shards.part(whole) if id(own) in sharded else whole)


def _bytes_of(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() * tf.as_dtype(variable.dtype).size)


def _check(optimizer: Any, options: ReduceOptions) -> None:
    """Raises NotImplementedError for what cannot be sharded."""
    kind, why = type(optimizer).__name__, ""
    if kind not in _ELEMENTWISE or type(optimizer) is not getattr(keras.optimizers, kind, None):
        why = f"{kind} may not update each element of a variable by itself"
    elif optimizer.built:
        why = "the optimizer is built: wrap it before, or load the model with hvd.load_model"
    elif options.backward_passes_per_step > 1:
        why = "use gradient_accumulation_steps of Keras in place of backward_passes_per_step"
    elif options.op not in (reduce_ops.Average, reduce_ops.Sum):
        why = "use op=Average or op=Sum"  # with others ranks do not compare their weights
    elif options.after_reduce is not None:
        why = "after_reduce would get a part of the gradients"
    elif process_sets.checked_id(options.process_set) != 0:
        why = "ranks outside the process set would have whole states"
    elif gate.wanted():
        why = "in an elastic job the states of a lost rank would be lost"
    if why:
        raise NotImplementedError(f"shard_states=True for optimizer {optimizer.name!r}: {why}")
