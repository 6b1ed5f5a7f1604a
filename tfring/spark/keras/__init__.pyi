"""The public names, each from where it is defined; __init__.py reads them from this file."""

from tfring.spark.keras.estimator import KerasEstimator as KerasEstimator
from tfring.spark.keras.model import KerasModel as KerasModel
