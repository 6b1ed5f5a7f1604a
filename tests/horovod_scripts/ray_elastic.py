"""A class per worker, and an elastic job, as Horovod's documentation shows them on Ray."""

import argparse

import horovod.tensorflow as hvd
import numpy as np
import ray
import tensorflow as tf
from horovod.ray import ElasticRayExecutor, RayExecutor
from horovod.ray.elastic import RayHostDiscovery

parser = argparse.ArgumentParser()
parser.add_argument("--address", type=str, help="Ray cluster address")


class MyModel:
    def __init__(self, learning_rate):
        hvd.init()
        self.weight = tf.Variable(float(hvd.rank()))
        hvd.broadcast_variables([self.weight], root_rank=0)
        self.optimizer = tf.keras.optimizers.SGD(learning_rate)

    def get_weight(self):
        return float(self.weight)

    def train(self):
        with tf.GradientTape() as tape:
            loss = (self.weight - 1.0 - hvd.rank()) ** 2
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, [self.weight])
        self.optimizer.apply_gradients(zip(gradients, [self.weight]))
        return float(loss)


def stateful():
    executor = RayExecutor(RayExecutor.create_settings(120), num_workers=2)
    executor.start(executable_cls=MyModel, executable_args=[0.1])
    # Run 5 training steps
    for _ in range(5):
        # Stateful `execute` method takes the current worker executable as a parameter
        executor.execute(lambda worker: worker.train())
    result = executor.execute(lambda worker: worker.get_weight())
    executor.shutdown()
    return result


# Put the Horovod concepts into a single function
# This function will be serialized with Cloudpickle
def training_fn():
    hvd.init()
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
    model.build((None, 1))
    optimizer = tf.keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 4):
            x = np.ones((4, 1), np.float32)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - 3.0) ** 2)
            tape = hvd.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            state.commit()

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, epoch=0)
    state.register_reset_callbacks([lambda: None])
    train(state)
    return hvd.rank(), state.epoch


if __name__ == "__main__":
    args = parser.parse_args()
    ray.init(address=args.address)
    print("STATEFUL", stateful())
    settings = ElasticRayExecutor.create_settings(min_np=2, max_np=2, timeout_s=120, verbose=2)
    settings.discovery = RayHostDiscovery(use_gpu=False, cpus_per_slot=1)
    executor = ElasticRayExecutor(settings, cpus_per_slot=1, override_discovery=False)
    executor.start()
    print("ELASTIC", executor.run(training_fn))
    # Newer versions have one class for both.
    executor = RayExecutor(RayExecutor.create_settings(verbose=True), min_workers=1, max_workers=1)
    executor.start()
    print("ONE", executor.run(training_fn))
