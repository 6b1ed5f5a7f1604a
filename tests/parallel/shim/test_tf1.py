"""TF1 graphs: broadcasts of all global variables, as an operation and as a session hook."""

import numpy as np
import pytest
import tensorflow as tf

from tfring.horovod import tf1 as hvd

tf1 = tf.compat.v1


def _variables(rank):
    first = tf1.get_variable("first", initializer=np.full([3], rank, np.float32))
    second = tf1.get_variable("second", initializer=np.int64(rank + 10), use_resource=False)
    return first, second


def test_all_global_variables(rank, size):
    root = size - 1
    with tf.Graph().as_default(), tf1.Session() as session:
        variables = _variables(rank)
        broadcast = hvd.broadcast_global_variables(root)
        session.run(tf1.global_variables_initializer())
        assert session.run(variables)[1] == rank + 10
        session.run(broadcast)
        first, second = session.run(variables)
        assert first.tolist() == [root] * 3 and second == root + 10


def test_hook(rank):
    with tf.Graph().as_default():
        variables = _variables(rank)
        hook = hvd.BroadcastGlobalVariablesHook(0, device="/cpu:0")
        for _ in range(2):  # a hook serves one session after another
            with tf1.train.MonitoredTrainingSession(hooks=[hook]) as session:
                first, second = session.run(variables)
            assert first.tolist() == [0] * 3 and second == 10


def test_eager_execution_has_no_global_variables():
    with pytest.raises(RuntimeError, match="broadcast_variables"):
        hvd.broadcast_global_variables(0)
