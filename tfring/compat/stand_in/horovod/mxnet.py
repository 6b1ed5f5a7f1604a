"""horovod.mxnet: not part of tfring."""

raise ImportError(
    "horovod.mxnet was imported, and tfring stands in for Horovod's TensorFlow and Keras parts only"
)
