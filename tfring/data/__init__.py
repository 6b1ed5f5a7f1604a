"""Data that goes on where it was: cursors, samplers and datasets for jobs that change their size.

The names, which __init__.pyi lists, are loaded when they are first used, so that the ones that need
neither TensorFlow nor Keras load neither.
"""

from tfring.runtime.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
