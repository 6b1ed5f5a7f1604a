"""horovod: tfring under Horovod's name. tfring.compat.shim has the modules below it."""

import tfring_horovod

from tfring.compat import public_names, shim
from tfring.compat.shim import HOROVOD_VERSION as __version__  # noqa: F401

tfring_horovod.refuse_both()
__path__ = shim.install()
_get, __dir__, __all__ = public_names.reexport("tfring", ["run", "__version__"])
__getattr__ = shim.with_modules_below(__name__, _get)
