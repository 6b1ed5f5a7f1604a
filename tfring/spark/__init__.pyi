"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.spark.elastic import run_elastic as run_elastic
from tfring.spark.static import run as run
