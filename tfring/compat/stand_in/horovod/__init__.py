"""horovod: tfring under Horovod's name."""

from tfring.compat import HOROVOD_VERSION as __version__
from tfring.launcher.function import run

__all__ = ["__version__", "run"]
