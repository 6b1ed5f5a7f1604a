"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.ray.data import dataset_shard as dataset_shard
from tfring.ray.data import iterator_shard as iterator_shard
from tfring.ray.elastic import ElasticRayExecutor as ElasticRayExecutor
from tfring.ray.executor import RayExecutor as RayExecutor
from tfring.ray.nodes import RayHostDiscovery as RayHostDiscovery
from tfring.ray.settings import Settings as Settings
from tfring.ray.train import TfringConfig as TfringConfig
