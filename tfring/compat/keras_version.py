"""Which versions of Keras tfring.keras works with."""

from __future__ import annotations

import importlib.metadata


def check_installed() -> None:
    """Raises ImportError if tfring.keras does not work with the installed Keras.

    Loads neither Keras nor TensorFlow, which could fail without saying why.
    """
    try:
        installed = importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return
    check_version(installed)


def check_version(installed: str) -> None:
    """Raises ImportError for a version of Keras that tfring.keras does not work with."""
    if int(installed.partition(".")[0]) >= 3:
        return
    raise ImportError(
        f"tfring.keras works with Keras 3, and keras {installed} is installed: install it "
        '(pip install "keras>=3.1"), or use Keras 2 as the package tf_keras'
    )
