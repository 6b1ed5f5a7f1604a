"""Models and their training objects as bytes for other processes. All of it is the user's own."""

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
        content: the result of `model_bytes`.
        custom_objects: the user's classes and functions for it, by name.
    """
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(content)
        # The user's own model, from the user's own program: its code may run. `with_weights` alone
        # reads models from a store.
        return keras.saving.load_model(
            path, custom_objects=dict(custom_objects or {}), compile=False, safe_mode=False
        )


def with_weights(model: Any, stored: bytes, custom_objects: Mapping[str, Any] | None) -> bytes:
    """Returns `model_bytes` of a model with the weights of another; runs none of its code.

    Args:
        model: the user's Keras model; keeps its weights.
        stored: a .keras file from a store, where others may write. Only its arrays are read.
        custom_objects: the user's classes and functions for the model, by name.

    Raises:
        ValueError: the file's weights do not fit this model.
    """
    copy = model_of(model_bytes(model), custom_objects)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.keras")
        with open(path, "wb") as file:
            file.write(stored)
        try:
            copy.load_weights(path)
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"its weights do not fit this model: {error}") from error
    return model_bytes(copy)


def optimizer_config(optimizer: Any) -> Any:
    """Returns an optimizer, or its name, in a form that can be sent."""
    import keras

    return keras.optimizers.serialize(keras.optimizers.get(optimizer))


def optimizer_of(config: Any, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns a new optimizer from the result of `optimizer_config`.

    Args:
        config: the result of `optimizer_config`.
        custom_objects: the user's classes for it, by name.
    """
    import keras

    return keras.optimizers.deserialize(config, custom_objects=dict(custom_objects or {}))


def packed(objects: Mapping[str, Any], custom_objects: Mapping[str, Any] | None) -> bytes:
    """Returns objects of the user as bytes.

    Args:
        objects: the objects, by name.
        custom_objects: the user's classes and functions for them, by name.
    """
    inner = cloudpickle.dumps(dict(objects))
    return bytes(cloudpickle.dumps((dict(custom_objects or {}), inner)))


def unpacked(content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of `packed`. Loads Keras.

    Args:
        content: the bytes, from the user's own program.
    """
    import keras

    custom_objects, inner = cloudpickle.loads(content)
    with keras.saving.custom_object_scope(custom_objects):  # losses and metrics look there
        return cloudpickle.loads(inner), custom_objects


def compiled_with(model: Any, name: str, custom_objects: Mapping[str, Any] | None) -> Any:
    """Returns an argument that a model was compiled with; None if it was not compiled.

    Args:
        model: the Keras model.
        name: an argument of `compile`, for example "optimizer".
        custom_objects: the user's classes and functions, by name.

    Raises:
        ValueError: it is a class or a function of the user without a known name.
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
            f"Keras does not know {name} of the compiled model by its name. Pass it as {name}=, "
            f"or name it in custom_objects ({error})"
        ) from error
