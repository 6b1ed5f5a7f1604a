"""One example for each name of `import tfring.keras as hvd`. Starts on any number of ranks.

    tfring run -np 2 python examples/reference/for_keras.py FOLDER

The checkpoints go into FOLDER, which is new.
"""

# %%
import sys

import keras
import numpy as np
import tensorflow as tf

import tfring.keras as hvd
from tfring.checkpoint import Checkpointer

hvd.init()
hvd.set_random_seed(42)
folder = sys.argv[1]
x = np.random.default_rng(1).normal(size=(64, 4)).astype("float32")
y = x.sum(1, keepdims=True)

# %% tfring.DistributedOptimizer
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())), "mse")

# %% tfring.fit_callbacks
data = hvd.shard((x, y), batch_size=8)
history = model.fit(data, epochs=2, verbose=0, callbacks=hvd.fit_callbacks())
assert len(set(hvd.allgather_object(history.history["loss"][-1]))) == 1  # averaged over the ranks

# %% tfring.keras.allreduce, tfring.keras.allgather, tfring.keras.broadcast
# %% tfring.keras.reducescatter
assert hvd.allreduce(1.0, op=hvd.Sum) == hvd.size()
assert list(hvd.allgather(np.array([hvd.rank()]))) == list(range(hvd.size()))
assert hvd.broadcast(hvd.rank(), root_rank=0) == 0
assert list(hvd.reducescatter(np.ones([hvd.size()]), op=hvd.Sum)) == [hvd.size()]

# %% tfring.keras.save_checkpoint, tfring.keras.restore_checkpoint
with Checkpointer(f"{folder}/loop") as checkpoints:  # on every rank
    hvd.save_checkpoint(checkpoints, model, step=100, epoch=2, must=True)
with Checkpointer(f"{folder}/loop") as checkpoints:
    position = hvd.restore_checkpoint(checkpoints, model)
assert position.step == 100 and position.epoch == 2

# %% tfring.keras.load_model
if hvd.rank() == 0:
    model.save(f"{folder}/model.keras")
hvd.barrier()
loaded = hvd.load_model(f"{folder}/model.keras")  # its optimizer averages gradients again

# %% tfring.keras.save_model
hvd.save_model(model, f"{folder}/whole.keras")  # on every rank: rank 0 writes

# %% tfring.keras.callbacks.CheckpointCallback
checkpoint = hvd.callbacks.CheckpointCallback(f"{folder}/fit", every_epochs=1)
model.fit(data, epochs=1, verbose=0, callbacks=[*hvd.fit_callbacks(), checkpoint])

# %% tfring.keras.callbacks.BroadcastGlobalVariablesCallback
# %% tfring.keras.callbacks.MetricAverageCallback
# %% tfring.keras.callbacks.LearningRateWarmupCallback
# %% tfring.keras.callbacks.ConsistencyCheckCallback
callbacks = [  # as in a script for Horovod; `fit_callbacks` has the first two
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size(), warmup_epochs=1),
    hvd.callbacks.ConsistencyCheckCallback(every=100),
]
model.fit(data, epochs=1, verbose=0, callbacks=callbacks)

# %% tfring.keras.callbacks.LearningRateScheduleCallback
schedule = hvd.callbacks.LearningRateScheduleCallback(
    initial_lr=0.01, multiplier=lambda epoch: 0.1 ** (epoch // 30), steps_per_epoch=8
)

# %% tfring.keras.callbacks.BatchNormAverageCallback
# %% tfring.keras.callbacks.BestModelCheckpoint
callbacks = hvd.fit_callbacks()
callbacks.append(hvd.callbacks.BatchNormAverageCallback())  # moving averages of all ranks
if hvd.rank() == 0:  # one rank writes the file
    best = f"{folder}/best.keras"
    callbacks.append(hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=best))
model.fit(data, epochs=1, verbose=0, callbacks=callbacks)

# %% tfring.data.ElasticDataset, tfring.keras.callbacks.CursorCallback
numbered = hvd.data.ElasticDataset(
    lambda numbers: (x[numbers], y[numbers]),  # loads the samples of these numbers
    samples=len(x),
    policy=16,  # samples of a step, on all ranks together
)
callbacks = [*hvd.fit_callbacks(), hvd.callbacks.CursorCallback(numbered)]
model.fit(numbered, epochs=1, verbose=0, shuffle=False, callbacks=callbacks)

# %% tfring.data.DataCursor, tfring.data.index_dataset, tfring.data.Policy
policy = hvd.data.Policy(8, per_rank=True)  # 8 samples of a step on each rank
cursor = hvd.data.DataCursor(len(x), policy)
for rows in hvd.data.index_dataset(lambda numbers: tf.gather(x, numbers), cursor):
    assert len(rows) == 8
    cursor.commit()  # this step is trained on

# %% tfring.keras.elastic.fit
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
history = hvd.elastic.fit(model, (x, y), epochs=1, policy=16, verbose=0)

# %% tfring.elastic.run, tfring.keras.elastic.KerasState
state = hvd.elastic.KerasState(model, epoch=0)


@hvd.elastic.run
def train(state):  # is called again when ranks were lost or have joined
    while state.epoch < 2:
        model.fit(data, epochs=1, verbose=0, callbacks=hvd.fit_callbacks())
        state.epoch += 1
        state.commit()


train(state)  # %% tfring.keras.elastic.fit
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
history = hvd.elastic.fit(model, (x, y), epochs=1, policy=16, verbose=0)

# %% tfring.elastic.run, tfring.keras.elastic.KerasState
state = hvd.elastic.KerasState(model, epoch=0)


@hvd.elastic.run
def train(state):  # is called again when ranks were lost or have joined
    while state.epoch < 2:
        model.fit(data, epochs=1, verbose=0, callbacks=hvd.fit_callbacks())
        state.epoch += 1
        state.commit()


train(state)
