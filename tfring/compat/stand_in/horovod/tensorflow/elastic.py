"""horovod.tensorflow.elastic: has no counterpart yet."""

from tfring.compat import not_yet

raise not_yet("elastic training (horovod.tensorflow.elastic)")
