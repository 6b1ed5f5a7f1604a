"""tfring on Spark: training in the tasks of a Spark job, with the parameters of horovod.spark.

    import tfring.spark

    results = tfring.spark.run(train, args=[1000], num_proc=4)

`tfring help spark` has the rest. __init__.pyi lists the names.
"""

from tfring.integration import lazy_names

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as _error:
    raise ImportError(
        "tfring.spark needs Spark, which is not installed. Run: pip install 'tfring[spark]' "
        f"({_error})"
    ) from _error

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
