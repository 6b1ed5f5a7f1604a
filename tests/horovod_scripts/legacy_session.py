"""A TF1 graph with a monitored session, as Horovod's documentation shows it for TensorFlow 1."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())

rng = np.random.default_rng(hvd.rank())
slope = np.array([[2.0], [-1.0]], np.float32)
features = tf.placeholder(tf.float32, [None, 2])
targets = tf.placeholder(tf.float32, [None, 1])
weights = tf.get_variable("weights", [2, 1], initializer=tf.random_normal_initializer())
loss = tf.reduce_mean(tf.square(tf.matmul(features, weights) - targets))
opt = hvd.DistributedOptimizer(tf.train.MomentumOptimizer(0.05, 0.9))
global_step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=global_step)
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=60)]
values = None
with tf.train.MonitoredTrainingSession(hooks=hooks, config=config) as session:
    while not session.should_stop():
        x = rng.normal(size=[16, 2]).astype(np.float32)
        _, values = session.run([train_op, weights], {features: x, targets: x @ slope})
print(f"RESULT weights={values.ravel().tolist()}")
