"""The collectives that users call, with Horovod's parameters: one file per collective.

They work in eager mode, in a tf.function and in TF1 graphs. The same call must happen on every rank
of the process set, under the same name (tfring.ops.names says how default names come about).
"""
