"""StateShards: the part of an optimizer's work that one rank does (shard_states=True).

The optimizer of each rank is built for *parts* in place of the model's variables
(training/shards.py). If it treats each element of a variable by itself, a part is a flat variable
with 1/N of the elements. If it needs whole variables, each variable has an owner, whose part is the
variable itself; the parts of the other ranks are empty. So the states of a rank have about 1/N of
their size. A step

1. gives each part the present values of its variable, which may have been loaded or assigned;
2. lets the optimizer update the parts with the reduced gradients of the same elements;
3. brings the parts of all ranks into the model's variables of each.

The optimizer takes a part for its variable: `_var_key` gives both one key, so that
`exclude_from_weight_decay` and `apply` know the model's variables.

A saved optimizer is whole: `gathered` brings the states of all ranks to the first one, and each
rank takes its parts of what it loads.

Local variables, and those that are overwritten with their gradient, are their own parts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfring.collectives import allreduce, buckets
from tfring.collectives.variables import PART
from tfring.keras import facts
from tfring.keras.sharded_state import ShardedState
from tfring.ops import builders, reduce_ops, topology_ops, xla
from tfring.runtime import process_sets, topology
from tfring.runtime.keras_version import replaceable
from tfring.training import gate
from tfring.training.local_variables import LocalVariables
from tfring.training.options import ReduceOptions
from tfring.training.shard_moves import Range
from tfring.training.shards import EqualShards, OwnedShards, join_parts, owners

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
    "ScheduleFreeAdamW",
)
# Optimizers that need whole variables.
_BY_VARIABLE = ("Adafactor", "Lamb", "Muon")


@dataclasses.dataclass(frozen=True)
class _Held:
    """A variable of the model, and this rank's part of it."""

    whole: Any
    part: Any
    shards: EqualShards | OwnedShards | None  # None: the variable is its own part on all ranks


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
        self._equal = EqualShards(self._members.size(), self._members.rank())
        self._by_variable = type(optimizer).__name__ in _BY_VARIABLE
        self._held: dict[Any, _Held] = {}  # by key of the variable
        self._shapes: dict[int, tuple[int, ...]] = {}  # of whole states, by the ids of the parts
        self._keys: dict[Any, Any] = {}  # key of the variable by key of its part
        self._gathered: list[Any] | None = None  # values of all states, while they are saved
        self.traced_anew = False  # whether all steps are traced again when the ranks have changed

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
        if self._held:
            return
        variables = list(variables)
        with tf.init_scope():
            self._cut(variables)
        self._build(self.parts_of(variables))
        if self._by_variable:
            with tf.init_scope():
                self._shapes = self._whole_shapes()
        for state in self.states().values():
            setattr(state.own, PART, True)

    def divide(self) -> bool:
        """Divides the states anew if this rank, or the number of ranks, is another one now.

        They get new variables of TensorFlow, with initial values.

        Returns:
            Whether functions that were traced before have variables that are not used any more.
        """
        now = EqualShards(self._members.size(), self._members.rank())
        if now == self._equal:
            return False
        self._equal = now
        if not self._held:
            return False
        wholes, sharded = [held.whole for held in self._held.values()], self.states()
        with tf.init_scope():
            self._cut(wholes)
        for own, new in self._initial(wholes):
            if id(own) in sharded:
                own._value, own._shape = new._value, new._shape
        # TensorFlow and Keras must neither keep the former parts nor track these.
        del self._optimizer._trainable_variables
        object.__setattr__(self._optimizer, "_trainable_variables", self.parts_of(wholes))
        return True

    def begin(self) -> None:
        """Gives the states their initial values, which some optimizers take from the weights."""
        if not self._held:
            return
        wholes, sharded = [held.whole for held in self._held.values()], self.states()
        self.refresh(wholes)
        for own, new in self._initial(wholes):
            if id(own) in sharded:
                own.assign(new.value)

    def _initial(self, wholes: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Returns each state of the optimizer, and one with its initial value for the parts."""
        with tf.init_scope():
            plain = _plain(self._optimizer)
            plain.build(self.parts_of(wholes))
        made = {(name, self._key(of)): own for name, of, own in facts.slots_of(plain, wholes)}
        slots = facts.slots_of(self._optimizer, wholes)
        return [(own, made[name, self._key(of)]) for name, of, own in slots]

    @property
    def built(self) -> bool:
        """Whether the optimizer has its states."""
        return bool(self._held)

    def _cut(self, variables: list[Any]) -> None:
        """Makes the parts of the model's variables."""
        shards = self._shards_for(variables, self._equal.count, self._equal.index)
        self._held, self._keys = {}, {}
        for variable, how in zip(variables, shards, strict=True):
            key, part = self._key(variable), _part_of(variable, how)
            self._held[key] = _Held(variable, part, how)
            self._keys[self._key(part)] = key
        # Some optimizers begin with the values of their variables.
        self.refresh([v for v in variables if _has_value(v)])

    @property
    def divided(self) -> tuple[int, int]:
        """Among how many ranks the states are divided, and which of them this one is."""
        return self._equal.count, self._equal.index

    def check_ranks(self) -> list[Any]:
        """Raises RuntimeError if the states are divided among other ranks than the present ones.

        In a function that XLA compiles it cannot know, and raises NotImplementedError except in
        elastic `fit`.

        Returns:
            In a graph, operations that raise InvalidArgumentError when it runs among other ranks.
        """
        if not gate.wanted():
            return []
        count, index = self.divided
        why = (
            f"Optimizer {self._optimizer.name!r} has the states of rank {index} of {count} "
            "(shard_states=True), and the ranks have changed since.\n"
            "Train in the function that you give to hvd.elastic.run, with a hvd.elastic.KerasState "
            "of this model, and make a tf.function of your own within that function, not in a "
            "reset callback."
        )
        if tf.executing_eagerly():
            if (count, index) != (self._members.size(), self._members.rank()):
                raise RuntimeError(why)
            return []
        if xla.compiling():  # it has no assertions
            if not self.traced_anew:
                raise NotImplementedError(
                    f"shard_states=True for optimizer {self._optimizer.name!r}: in an elastic job "
                    "a compiled step would not notice that the ranks have changed.\n"
                    "Use jit_compile=False, or hvd.elastic.fit."
                )
            return []
        now = tf.stack([topology_ops.size_op(), topology_ops.rank_op()])
        return [tf.debugging.Assert(tf.reduce_all(now == [count, index]), [why])]

    def ranges(self, count: int) -> list[list[Range]]:
        """Returns which elements of each state each of `count` ranks has, as `states` has them."""
        wholes = [held.whole for held in self._held.values()]
        shards = dict(zip(self._held, self._shards_for(wholes, count, 0), strict=True))
        found = []
        for of, _, shape in self._sharded_slots():
            how = shards[self._key(of)]
            assert how is not None
            found.append(how.ranges(math.prod(shape)))
        return found

    def _shards_for(
        self, variables: list[Any], count: int, index: int
    ) -> list[EqualShards | OwnedShards | None]:
        """Returns how each variable is divided on rank `index` of `count`; None: it is not."""
        local = self._local.positions(variables)
        divided = [
            position
            for position, variable in enumerate(variables)
            if position not in local
            and not getattr(variable, "overwrite_with_gradient", False)
            # A number has no empty part: all ranks update it.
            and not (self._by_variable and not len(variable.shape))
        ]
        found: list[EqualShards | OwnedShards | None] = [None] * len(variables)
        equal = EqualShards(count, index)
        chosen = owners([facts.bytes_of(variables[position]) for position in divided], count)
        for position, owner in zip(divided, chosen, strict=True):
            owned = OwnedShards(count, index, owner)
            found[position] = owned if self._by_variable else equal
        return found

    def _whole_shapes(self) -> dict[int, tuple[int, ...]]:
        """Returns the shapes of the whole states, by the ids of those that this rank has.

        For each variable of another rank an optimizer of the same kind is built for a moment, which
        takes the memory of this one variable.
        """
        found = {}
        for held in self._held.values():
            mine = facts.slots_of(self._optimizer, [held.whole])
            whole = {name: own for name, _, own in mine}
            if isinstance(held.shards, OwnedShards) and not held.shards.is_own:
                plain = _plain(self._optimizer)
                like = _like(held.whole, held.whole.shape)
                plain.build([like])
                whole = {name: own for name, _, own in facts.slots_of(plain, [like])}
            found.update({id(own): tuple(whole[name].shape) for name, _, own in mine})
        return found

    def is_sharded(self, variable: Any) -> bool:
        """Returns whether this rank has only a part of a variable of the model."""
        return self._shards_of(variable) is not None

    def _shards_of(self, variable: Any) -> EqualShards | OwnedShards | None:
        held = self._held.get(self._key(variable))
        return None if held is None else held.shards

    def refuse_cut(self, variable: Any) -> None:
        """Raises RuntimeError if the states of a variable of the model are cut already."""
        if self.is_sharded(variable):
            raise RuntimeError(
                f"register_local_var: optimizer {self._optimizer.name!r} has a part of the states "
                "of this variable already (shard_states=True).\nRegister local variables before "
                "the optimizer is built."
            )

    def parts_of(self, variables: Iterable[Any]) -> list[Any]:
        """Returns the parts of variables of the model."""
        return [self._held[self._key(v)].part for v in variables]

    def wholes_of(self, parts: Iterable[Any]) -> list[Any]:
        """Returns the model's variables of some parts."""
        return [self._held[self.key(part)].whole for part in parts]

    def refresh(self, variables: Iterable[Any]) -> None:
        """Gives the parts the values of their variables."""
        for variable in variables:
            held = self._held[self._key(variable)]
            if held.shards is not None and held.part is not variable:
                held.part.assign(held.shards.part(tf.convert_to_tensor(variable)))

    def gather(self, variables: Sequence[Any], name: str) -> None:
        """Gives the variables the values of all ranks' parts."""
        ordered = [v for v in reversed(variables) if self.is_sharded(v)]
        specs = tuple(buckets.TensorSpec(v.dtype, facts.bytes_of(v)) for v in ordered)
        for bucket in buckets.cut_buckets(specs):
            chosen = [ordered[position] for position in bucket.positions]
            bring = self._broadcast if self._by_variable else self._gather_parts
            bring(chosen, f"{name}.weights.{bucket.index}")

    def _gather_parts(self, variables: Sequence[Any], name: str) -> None:
        values = [tf.convert_to_tensor(part.value) for part in self.parts_of(variables)]
        gathered = builders.allgather_op(
            values,
            name=name,
            process_set_id=process_sets.checked_id(self._members),
            group=True,
        )
        for variable, parts in zip(variables, gathered, strict=True):
            variable.assign(join_parts(parts, tf.TensorShape(variable.shape)))

    def _broadcast(self, variables: Sequence[Any], name: str) -> None:
        by_owner: dict[int, list[Any]] = {}
        for variable in variables:
            shards = self._shards_of(variable)
            assert isinstance(shards, OwnedShards)
            by_owner.setdefault(shards.owner, []).append(variable)
        for owner, chosen in sorted(by_owner.items()):
            values = builders.broadcast_op(
                [tf.convert_to_tensor(variable) for variable in chosen],
                name=f"{name}.{owner}",
                root_rank=self._members.ranks[owner] if self._members.ranks else owner,
                process_set_id=process_sets.checked_id(self._members),
            )
            for variable, value in zip(chosen, values, strict=True):
                variable.assign(value)

    def constrain(self, variables: Iterable[Any]) -> None:
        """Applies constraints of weights, which need whole ones."""
        for variable in variables:
            constraint = getattr(variable, "constraint", None)
            if constraint is not None and self.is_sharded(variable):
                variable.assign(constraint(variable))

    @property
    def of_gradients(self) -> EqualShards | None:
        """How a reduction cuts gradients; None: they are whole, and `cut` takes their parts."""
        return None if self._by_variable else self._equal

    def cut(self, gradients: list[Any], variables: list[Any], without: list[int]) -> list[Any]:
        """Returns this rank's parts of reduced gradients, except at some positions."""
        parts = list(gradients)
        for position, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            shards = self._shards_of(variable)
            if position not in without and gradient is not None and shards is not None:
                parts[position] = shards.part(tf.convert_to_tensor(gradient))
        return parts

    def clip(self, gradients: list[Any], variables: list[Any], name: str) -> list[Any]:
        """Clips by norms that are those of whole gradients, as the optimizer would.

        Args:
            gradients: of this rank's parts.
            variables: of the model, one per gradient.
            name: what the name of the collective starts with.
        """
        optimizer = self._optimizer
        kind = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
        squares = tf.stack([tf.reduce_sum(tf.square(tf.cast(g, kind))) for g in gradients])
        # What all ranks have counts once.
        counts = [self._equal.index == 0 or self.is_sharded(variable) for variable in variables]
        squares = allreduce.allreduce(
            tf.where(counts, squares, tf.zeros_like(squares)),
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
        found = {}
        for of, own, shape in self._sharded_slots():
            shards = self._shards_of(of)
            assert shards is not None
            found[id(own)] = ShardedState(own, shape, shards, self._members)
        return found

    def _sharded_slots(self) -> Iterator[tuple[Any, Any, tuple[int, ...]]]:
        """Yields a variable of the model, the part of one of its states, the whole one's shape."""
        wholes = [held.whole for held in self._held.values()]
        for _, of, own in facts.slots_of(self._optimizer, wholes):
            shape = self._shapes.get(id(own), tuple(of.shape))
            # An optimizer may have numbers in place of states; all ranks have them.
            if self.is_sharded(of) and (shape or not self._by_variable):
                yield of, own, shape

    @property
    def steps(self) -> int:
        """How often the optimizer has been given gradients; needs eager mode."""
        return int(facts.number(facts.passes_of(self._optimizer)))

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
                "hvd.save_model(model, path) on all ranks: it gathers them, and rank 0 writes. "
                "With a process set give it process_set=."
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
            state = sharded.get(id(own))
            own.assign(whole if state is None else state.shards.part(whole))


def _part_of(variable: Any, shards: EqualShards | OwnedShards | None) -> Any:
    """Makes a part, or returns the variable where that is the part.

    `refresh` gives it values: a function that is traced may not have any.
    """
    if shards is None or (isinstance(shards, OwnedShards) and shards.is_own):
        return variable
    shape = [0] * len(variable.shape)
    if isinstance(shards, EqualShards):
        shape = [shards.part_size(tf.TensorShape(variable.shape).num_elements())]
    part = _like(variable, shape)
    setattr(part, facts.WHOLE, variable)
    return part


def _like(variable: Any, shape: Sequence[int]) -> Any:
    """Returns a variable of zeros with the dtype, name and path of another one."""
    # A tf.Variable may have a path and a number.
    name = str(variable.name).replace("/", "_").replace(":", "_")
    made = keras.Variable(tf.zeros(shape, variable.dtype), dtype=variable.dtype, name=name)
    made._path = getattr(variable, "path", name)
    return made


def _plain(optimizer: Any) -> Any:
    """Returns an optimizer of the same kind, which is not built."""
    rate = {"learning_rate": 0.0}  # a function of the program may not be made from a config
    return type(optimizer).from_config({**optimizer.get_config(), **rate})


def _has_value(variable: Any) -> bool:
    handle = variable if isinstance(variable, tf.Variable) else variable.value
    return tf.executing_eagerly() and bool(handle.is_initialized())


def _check(optimizer: Any, options: ReduceOptions) -> None:
    """Raises NotImplementedError for what cannot be sharded."""
    kind, why = type(optimizer).__name__, ""
    known = kind in _ELEMENTWISE or kind in _BY_VARIABLE
    if not known or type(optimizer) is not getattr(keras.optimizers, kind, None):
        why = (
            f"tfring does not know what {kind} needs of the other ranks' parts: use an optimizer "
            "of Keras itself, or leave shard_states out"
        )
    elif optimizer.built:
        why = "the optimizer is built: wrap it before, or load the model with hvd.load_model"
    elif options.backward_passes_per_step > 1:
        why = "use gradient_accumulation_steps of Keras in place of backward_passes_per_step"
    elif options.op not in (reduce_ops.Average, reduce_ops.Sum):
        why = "use op=Average or op=Sum"  # with others ranks do not compare their weights
    elif options.after_reduce is not None:
        why = "after_reduce would get a part of the gradients"
    elif gate.wanted() and process_sets.checked_id(options.process_set) != 0:
        why = "in an elastic job all ranks share the states: leave out process_set"
    if why:
        raise NotImplementedError(f"shard_states=True for optimizer {optimizer.name!r}: {why}")
