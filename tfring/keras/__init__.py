"""What Keras users import: `import tfring.keras as hvd`.

The names, which __init__.pyi lists, are loaded when they are first used, so `hvd.init()` can still
set up what TensorFlow reads when it starts.
"""

from tfring.runtime import keras_version
from tfring.runtime.public_names import lazy_names

keras_version.check_installed()
__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
