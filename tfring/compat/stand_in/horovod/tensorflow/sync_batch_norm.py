"""horovod.tensorflow.sync_batch_norm: tfring."""

from tfring.compat import stand_for

__getattr__, __dir__, __all__ = stand_for("tfring")
