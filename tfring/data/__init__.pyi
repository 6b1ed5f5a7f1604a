"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.data.data_cursor import DataCursor as DataCursor
from tfring.data.data_loader import AsyncDataLoaderMixin as AsyncDataLoaderMixin
from tfring.data.data_loader import BaseDataLoader as BaseDataLoader
from tfring.data.elastic_dataset import ElasticDataset as ElasticDataset
from tfring.data.elastic_sampler import ElasticSampler as ElasticSampler
from tfring.data.indexed import index_dataset as index_dataset
from tfring.data.indexed import skip as skip
from tfring.data.policies import Policy as Policy
from tfring.data.policies import fixed_global as fixed_global
from tfring.data.policies import scaled as scaled
