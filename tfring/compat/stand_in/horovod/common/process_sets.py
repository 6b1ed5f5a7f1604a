"""horovod.common.process_sets: tfring.process_sets."""

from tfring.compat import stand_for

__getattr__, __dir__, __all__ = stand_for("tfring.process_sets")
