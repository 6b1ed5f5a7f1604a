"""horovod.tensorflow.data: has no counterpart yet."""

from tfring.compat import not_yet

raise not_yet("the data service (horovod.tensorflow.data)")
