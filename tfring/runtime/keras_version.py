"""Which versions of Keras tfring.keras works with, and what it says of others."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from typing import Any

from tfring.runtime.program_warnings import warn_program
from tfring.runtime.public_names import tf_keras_is_keras2

# The newest is a nightly build until it is released; `make canary` tests with it.
OLDEST_TESTED, NEWEST_TESTED = "3.0", "3.16"
TESTED = f"Keras {OLDEST_TESTED} to {NEWEST_TESTED}"
_WAS_TESTED = f"tfring was tested with {TESTED}"


def installed() -> str:
    """Returns the version of Keras, without loading it; "" if there is none."""
    if loaded := sys.modules.get("keras"):
        return str(loaded.__version__)
    for name in ("keras", "keras-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def check_installed() -> None:
    """Raises ImportError if tfring.keras does not work with the installed Keras.

    Loads neither Keras nor TensorFlow, which could fail without saying why.
    """
    if found := installed():
        check_version(found)
        check_backend()


def check_backend() -> None:
    """Raises ImportError if Keras computes with another backend than TensorFlow, or will.

    Not where the program uses Keras 2, which has no other.
    """
    loaded = sys.modules.get("keras")
    config = getattr(loaded, "config", None)  # none as long as Keras is being imported
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if config is not None:
        backend = str(config.backend())
    if backend != "tensorflow" and not tf_keras_is_keras2():
        raise ImportError(
            f"tfring works with Keras' TensorFlow backend, and this is {backend!r}: set "
            "KERAS_BACKEND=tensorflow before keras is imported"
        )


def check_version(version: str) -> None:
    """Raises ImportError for a Keras before Keras 3, and warns of one that was not tested."""
    if int(version.partition(".")[0]) < 3:
        raise ImportError(
            f"tfring.keras works with Keras 3, and keras {version} is installed: install it "
            f'(pip install "keras>={OLDEST_TESTED}"), or use Keras 2 as the package tf_keras'
        )
    if _minor(version) > _minor(NEWEST_TESTED):
        warn_program(
            f"{_WAS_TESTED}, and Keras {version} is installed. If an error names something that "
            "Keras lacks, install one of these."
        )


def replaceable(owner: Any, name: str, what: str) -> Any:
    """Returns `owner.name`, which tfring is about to replace.

    Args:
        owner: a class or an object of Keras.
        name: of its attribute.
        what: of tfring needs that.

    Raises:
        NotImplementedError: this Keras has no such attribute.
    """
    if not hasattr(owner, name):
        of = owner if isinstance(owner, type) else type(owner)
        raise NotImplementedError(
            f"Keras {installed()} has no {of.__name__}.{name}, without which {what} does not work; "
            f"{_WAS_TESTED}: install one of these."
        )
    return getattr(owner, name)


def _minor(version: str) -> list[int]:
    return [int(part) for part in version.split(".")[:2]]
