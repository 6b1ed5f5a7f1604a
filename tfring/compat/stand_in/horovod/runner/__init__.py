"""horovod.runner: tfring.launcher.function."""

from tfring.compat import stand_for

__getattr__, __dir__, __all__ = stand_for("tfring.launcher.function")
