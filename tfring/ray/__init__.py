"""tfring on Ray: training on the actors of a Ray cluster, with the parameters of horovod.ray.

    from tfring.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(), num_workers=4)
    executor.start()
    results = executor.run(train)

docs/ray.md has the rest. __init__.pyi lists the names.
"""

from tfring.compat.public_names import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
