"""horovod: tfring under Horovod's name. tfring.horovod.shim has the modules below it."""

from tfring.horovod import shim
from tfring.horovod.shim import HOROVOD_VERSION as __version__  # noqa: F401
from tfring.integration import reexport

__path__ = shim.install()
_get, __dir__, __all__ = reexport("tfring", ["run", "__version__"])
__getattr__ = shim.with_modules_below(__name__, _get)
