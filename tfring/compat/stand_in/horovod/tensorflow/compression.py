"""horovod.tensorflow.compression: tfring.collectives.compression."""

from tfring.compat import stand_for

__getattr__, __dir__, __all__ = stand_for("tfring.collectives.compression")
