"""Data that continues from a saved place: cursors, samplers and datasets for jobs that change size.

__init__.pyi lists the names. Each is loaded on first use, so names that need neither TensorFlow nor
Keras load neither.
"""

from tfring.runtime.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
