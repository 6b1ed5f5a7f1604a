"""Estimators of Spark ML that train Keras models: horovod.spark.keras on tfring.

__init__.pyi lists the names; `tfring help spark` says what they do.
"""

from tfring.integration import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
