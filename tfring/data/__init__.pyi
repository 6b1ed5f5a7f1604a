"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.data.data_cursor import DataCursor as DataCursor
from tfring.data.elastic_dataset import ElasticDataset as ElasticDataset
from tfring.data.indexed import index_dataset as index_dataset
from tfring.data.policies import Policy as Policy
