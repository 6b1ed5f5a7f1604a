"""tfring on Ray: training on the actors of a Ray cluster, with the parameters of horovod.ray.

    from tfring.ray import RayExecutor

    executor = RayExecutor(num_workers=4)
    executor.start()
    results = executor.run(train)
    executor.shutdown()

`tfring help ray` has the rest. __init__.pyi lists the names.
"""

from tfring.integration import lazy_names

try:
    import ray as _ray  # noqa: F401
except ImportError as _error:
    raise ImportError(
        f"tfring.ray needs Ray, which is not installed. Run: pip install 'tfring[ray]' ({_error})"
    ) from _error

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
