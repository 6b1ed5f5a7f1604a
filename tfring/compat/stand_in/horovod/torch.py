"""horovod.torch: not part of tfring."""

raise ImportError(
    "horovod.torch was imported, and tfring stands in for Horovod's TensorFlow and Keras parts only"
)
