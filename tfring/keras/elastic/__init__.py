"""Elastic training with Keras: `fit`, or Horovod's state and callbacks for a `fit` of your own.

    import tfring.keras as hvd

    hvd.elastic.fit(model, (x, y), epochs=10, policy=256)

`tfring help elastic` says what happens when. __init__.pyi lists the names.
"""

from tfring.runtime.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
