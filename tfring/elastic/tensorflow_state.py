"""States of TensorFlow and Keras: variables beside attributes of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfring.collectives.assigned import finalize
from tfring.collectives.objects import broadcast_object
from tfring.collectives.variables import PART, broadcast_, describe_variables
from tfring.elastic.copies import Part
from tfring.elastic.state import ObjectState
from tfring.runtime import _native
from tfring.runtime.exceptions import tf_errors
from tfring.runtime.topology import rank


class _VariablesState(ObjectState):
    """Variables and attributes; a subclass says which variables there are now."""

    def __init__(self, **kwargs: Any) -> None:
        self._saved_variables: list[tuple[Any, Any]] = []  # each with its value
        super().__init__(broadcast_object, rank, **kwargs)
        self._save_variables()

    def save(self) -> None:
        """See `State.save`."""
        self._save_variables()
        super().save()

    def restore(self) -> None:
        """See `State.restore`."""
        self._restore_variables()
        super().restore()

    def _variables(self) -> list[Any]:
        raise NotImplementedError

    def _save_variables(self) -> None:
        # On a CPU a tensor that was read keeps its memory, and the next update of the variable
        # takes new memory: nothing is copied here. From a GPU the values come to the host.
        with tf.device("CPU:0"):
            self._saved_variables = [(v, tf.identity(_read(v))) for v in self._variables()]

    def _restore_variables(self) -> None:
        for variable, value in self._saved_variables:
            variable.assign(value)
        finalize(variable for variable, _ in self._saved_variables)

    def _describe(self) -> list[str]:
        if any(getattr(variable, PART, False) for variable in self._variables()):
            raise NotImplementedError(
                f"{type(self).__name__} would give all ranks the same part of the optimizer's "
                "states, and each has its own part (shard_states=True).\n"
                "Use hvd.elastic.fit or hvd.elastic.KerasState of tfring.keras."
            )
        described = enumerate(describe_variables(self._variables()))
        variables = (f"variable {n}: {dtype} {shape}" for n, (dtype, shape) in described)
        return [*super()._describe(), *variables]

    def _pack(self) -> list[Part] | None:
        attributes = super()._pack()
        if attributes is None:
            return None
        saved = {id(variable): value for variable, value in self._saved_variables}
        with tf.device("CPU:0"):
            values = [saved[id(v)] if id(v) in saved else _read(v) for v in self._variables()]
        return [*map(part_of_tensor, values), *attributes]

    def _unpack(self, parts: Iterator[bytearray]) -> None:
        for variable, part in zip(self._variables(), parts, strict=False):
            dtype = tf.as_dtype(variable.dtype).base_dtype.as_numpy_dtype
            self._assign(variable, np.frombuffer(part, dtype).reshape(tuple(variable.shape)))
        super()._unpack(parts)

    def _assign(self, variable: Any, value: Any) -> None:
        variable.assign(value)

    def _send(self, root: int) -> None:
        variables = self._variables()
        if variables:
            broadcast_(variables, root, name="tfring.elastic.variables")
        super()._send(root)


class TensorFlowState(_VariablesState):
    """Variables, and attributes of any kind; Horovod's class."""

    def __init__(
        self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        """Takes variables and makes each of `kwargs` an attribute.

        Args:
            variables: tf.Variable or keras.Variable, in the same order on every rank; None: all
                global variables of the graph.
            session: In a TF1 graph the session in which the variables are.
            **kwargs: Names and first values of the attributes.
        """
        given = tf.compat.v1.global_variables() if variables is None else variables
        self.variables = list(given)
        self.session = session
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return self.variables

    def _save_variables(self) -> None:
        if self.session is None:
            super()._save_variables()
        else:
            values = self.session.run(self.variables)
            self._saved_variables = list(zip(self.variables, values, strict=True))

    def _restore_variables(self) -> None:
        if self.session is None:
            super()._restore_variables()
        else:
            for variable, value in self._saved_variables:
                self._load(variable, value)

    def _describe(self) -> list[str]:
        if self.session is None:
            return super()._describe()
        variables = (f"variable {v.name}: {v.dtype.name} {v.shape}" for v in self.variables)
        return [*ObjectState._describe(self), *variables]

    def _send(self, root: int) -> None:
        if self.session is None:
            super()._send(root)
            return
        values = self.session.run(self.variables)
        with tf_errors():
            for position, (variable, value) in enumerate(zip(self.variables, values, strict=True)):
                name = f"tfring.elastic.session.{position}"
                array = np.ascontiguousarray(value)
                _native.note_call_site()
                self._load(variable, _native.core.broadcast(array, name=name, root=root))
        ObjectState._send(self, root)

    def _assign(self, variable: Any, value: Any) -> None:
        if self.session is None:
            super()._assign(variable, value)
        else:
            self._load(variable, value)

    def _load(self, variable: Any, value: Any) -> None:
        """Gives a variable a value through its initializer: the graph may be finalized."""
        initializer = variable.initializer
        self.session.run(initializer, {initializer.inputs[1]: value})


class TensorFlowKerasState(_VariablesState):
    """A Keras model with its optimizer, and attributes of any kind; Horovod's class.

    The weights of the model are kept, BatchNorm's statistics among them, and all variables of the
    optimizer. The states of seed generators and of metrics are each rank's own, and are not.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        """Takes a model and makes each of `kwargs` an attribute.

        Args:
            model: A Keras model that is built. The optimizer is built here if it is not.
            optimizer: The one that trains it; None: the one that it was compiled with.
            backend: Accepted for Horovod's sake.
            **kwargs: Names and first values of the attributes.

        Raises:
            ValueError: The model is not built.
        """
        if not getattr(model, "built", True):
            raise ValueError(
                "the model has no weights yet: call it, or model.build(input_shape), before "
                "TensorFlowKerasState(model)"
            )
        self.model = model
        self.optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
        self.backend = backend
        _build(self.optimizer, model.trainable_variables)
        super().__init__(**kwargs)

    def _variables(self) -> list[Any]:
        return [*self.model.weights, *_variables_of(self.optimizer)]


def _read(variable: Any) -> Any:
    """Returns the value of a tf.Variable, or of the one that a keras.Variable holds."""
    held = variable if isinstance(variable, tf.Variable) else variable.value
    return held.read_value()


def part_of_tensor(value: Any) -> Part:
    """Returns a tensor or an array as a part of a copy, read when it is written: one at a time."""

    def read() -> Any:
        array = value.numpy() if tf.is_tensor(value) else np.asarray(value)
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    return Part(int(np.prod(value.shape)) * tf.as_dtype(value.dtype).size, read)


def _variables_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer or of none: in Keras 2 a method, in Keras 3 a list."""
    variables = getattr(optimizer, "variables", ())
    if isinstance(variables, list):  # one that can be called, too, warns that this is of Keras 2
        return list(variables)
    return list(variables() if callable(variables) else variables)


def _build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the optimizer's variables, which it else has from its first update on."""
    if optimizer is None or getattr(optimizer, "built", False):
        return
    if hasattr(optimizer, "build"):
        optimizer.build(list(variables))
    elif hasattr(optimizer, "_create_all_weights"):  # the legacy optimizers of Keras 2
        optimizer._create_all_weights(list(variables))
