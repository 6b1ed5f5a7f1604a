"""Models and what trains them as bytes, for processes elsewhere. All of it is the user's own."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Mapping
from typing import Any

import cloudpickle


def model_bytes(model: Any) -> bytes:
    """Returns a Keras model as the content of a .keras file.

    Args:
        model: The model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        model.save(path)
        with open(path, "rb") as file:
            return file.read()


def model_of(content: bytes, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns the Keras model in the content of a .keras file, not compiled.

    Args:
        content: What `model_bytes` has returned.
        custom_objects: Classes and functions of the user that it needs, by name.
    """
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(content)
        # The user's own model, from the user's own program: what it brings along may run. One from
        # a store is read by `with_weights` only.
        return keras.saving.load_model(
            path, custom_objects=dict(custom_objects or {}), compile=False, safe_mode=False
        )


def with_weights(model: Any, stored: bytes, custom_objects: Mapping[str, Any] | None) -> bytes:
    """Returns `model_bytes` of a model with the weights of another, of which nothing is run.

    Args:
        model: The user's Keras model, which keeps its weights.
        stored: A .keras file from a store, where others may write. Only its arrays are read.
        custom_objects: Classes and functions of the user that the model needs, by name.

    Raises:
        ValueError: It does not have the weights of this model.
    """
    copy = model_of(model_bytes(model), custom_objects)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(stored)
        try:
            copy.load_weights(path)
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"it does not have the weights of this model: {error}") from error
    return model_bytes(copy)


def optimizer_config(optimizer: Any) -> Any:
    """Returns an optimizer, or its name, as what can be sent.

    Args:
        optimizer: The optimizer.
    """
    import keras

    return keras.optimizers.serialize(keras.optimizers.get(optimizer))


def optimizer_of(config: Any, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns a new optimizer.

    Args:
        config: What `optimizer_config` has returned.
        custom_objects: Classes of the user that it needs, by name.
    """
    import keras

    return keras.optimizers.deserialize(config, custom_objects=dict(custom_objects or {}))


def packed(objects: Mapping[str, Any], custom_objects: Mapping[str, Any] | None) -> bytes:
    """Returns objects of the user as bytes.

    Args:
        objects: The objects, by name.
        custom_objects: Classes and functions that they need, by name.
    """
    inner = cloudpickle.dumps(dict(objects))
    return bytes(cloudpickle.dumps((dict(custom_objects or {}), inner)))


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what `packed` has got. Loads Keras.

    Args:
        content: The bytes, which come from the user's own program.
    """
    import keras

    custom_objects, inner = cloudpickle.loads(content)
    with keras.saving.custom_object_scope(custom_objects):  # losses and metrics look there
        return cloudpickle.loads(inner), custom_objects


def compiled_with(model: Any, name: str, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns what a model was compiled with; None if it was not.

    Args:
        model: The Keras model.
        name: An argument of `compile`, "optimizer" for example.
        custom_objects: Classes and functions of the user that it may be, by name.

    Raises:
        ValueError: It is a class or a function of the user that nobody has named.
    """
    import keras

    config = model.get_compile_config() if getattr(model, "compiled", False) else None
    value = (config or {}).get(name)
    if value is None:
        return None
    try:
        with keras.saving.custom_object_scope(dict(custom_objects or {})):
            return keras.saving.deserialize_keras_object(value)
    except TypeError as error:
        raise ValueError(
            f"{name} of the compiled model is not known to Keras by its name: give it as {name}=, "
            f"or name it in custom_objects ({error})"
        ) from error
