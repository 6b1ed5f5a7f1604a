"""The collectives that users call, with Horovod's parameters: one file per collective.

They work in eager mode, in a tf.function and in TF1 graphs. Every rank of the process set must make
the same call, under the same name (tfring.ops.names describes default names). Importing this
package registers the ops' gradients with TensorFlow.
"""

from tfring.ops import gradients as _gradients  # noqa: F401
