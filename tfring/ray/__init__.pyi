"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.ray.executor import RayExecutor as RayExecutor
from tfring.ray.settings import Settings as Settings
