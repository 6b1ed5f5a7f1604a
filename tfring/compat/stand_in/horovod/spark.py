"""horovod.spark: not part of tfring."""

raise ImportError(
    "horovod.spark was imported, and tfring stands in for Horovod's TensorFlow and Keras parts only"
)
