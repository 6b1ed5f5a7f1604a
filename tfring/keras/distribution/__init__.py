"""keras.distribution on the ranks of a tfring job: a prototype (`tfring help keras_distribution`).

tfring.keras.distribution.enable()
keras.distribution.initialize()
keras.distribution.set_distribution(keras.distribution.DataParallel())
...
model.fit(dataset)  # each rank trains on its part of every batch
"""

from __future__ import annotations

from tfring.runtime.keras_version import lacks

try:
    from tfring.keras.distribution.switch import disable, enable, is_enabled
except ImportError as error:
    if not (error.name or "").startswith("keras."):
        raise
    raise ImportError(lacks(str(error.name), __name__), name=error.name) from error

__all__ = ["disable", "enable", "is_enabled"]
