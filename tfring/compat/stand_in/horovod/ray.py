"""horovod.ray: not part of tfring."""

raise ImportError(
    "horovod.ray was imported, and tfring stands in for Horovod's TensorFlow and Keras parts only"
)
