"""The collectives that users call, with Horovod's parameters: one file per collective.

They work in eager mode, in a tf.function and in TF1 graphs. The same call must happen on every rank
of the process set, under the same name (tfring.ops.names says how default names come about).
Importing this package tells TensorFlow the gradients of the ops.
"""

from tfring.ops import gradients as _gradients  # noqa: F401
from tfring.ops import rooted_gradients as _rooted_gradients  # noqa: F401
