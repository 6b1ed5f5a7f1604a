"""tfring: synchronous data-parallel training for TensorFlow 2 and Keras 3, on many processes.

    import tfring as hvd
    hvd.init()
    tape = hvd.DistributedGradientTape(tape)

The names are Horovod's; __init__.pyi lists them. They are loaded when they are first used:
importing tfring imports neither TensorFlow nor the compiled runtime.
"""

from tfring.runtime.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
