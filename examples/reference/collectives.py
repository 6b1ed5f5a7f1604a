"""One example for each name of `import tfring as hvd`. Starts on any number of ranks.

    tfring run -np 2 python examples/reference/collectives.py FOLDER

The timeline goes into FOLDER. The documentation shows each part between two lines of `# %%` on the
pages of the names in its line.
"""

# %%
import sys

import numpy as np
import tensorflow as tf

import tfring as hvd

# %% tfring.init, tfring.is_initialized
hvd.init()
assert hvd.is_initialized()

# %% tfring.rank, tfring.size, tfring.local_rank, tfring.local_size, tfring.cross_rank
# %% tfring.cross_size, tfring.is_homogeneous
print(f"rank {hvd.rank()} of {hvd.size()}, {hvd.local_rank()} of {hvd.local_size()} on this host")
print(f"host {hvd.cross_rank()} of {hvd.cross_size()}")
assert hvd.is_homogeneous()  # every host has the same number of ranks

# %% tfring.rank_op, tfring.size_op, tfring.local_rank_op, tfring.local_size_op
# %% tfring.cross_rank_op, tfring.cross_size_op, tfring.process_set_included_op


@tf.function
def whoami():
    return tf.stack([hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()])


assert whoami().numpy().tolist() == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
print(hvd.cross_rank_op(), hvd.cross_size_op(), hvd.process_set_included_op())

# %% tfring.allreduce
mean = hvd.allreduce(float(hvd.rank()))
assert mean == (hvd.size() - 1) / 2
total = hvd.allreduce(tf.ones([3]), op=hvd.Sum)
assert total.numpy().tolist() == [hvd.size()] * 3

# %% tfring.grouped_allreduce
first, second = hvd.grouped_allreduce([tf.ones([2]), tf.zeros([3])], op=hvd.Sum)
assert first.numpy().tolist() == [hvd.size()] * 2 and second.shape == [3]

# %% tfring.allgather, tfring.grouped_allgather
rows = hvd.allgather(tf.fill([hvd.rank() + 1, 2], hvd.rank()))  # rank r gives r + 1 rows
assert rows.shape == [hvd.size() * (hvd.size() + 1) // 2, 2]
ids, weights = hvd.grouped_allgather([tf.constant([hvd.rank()]), tf.ones([1])])
assert ids.numpy().tolist() == list(range(hvd.size()))

# %% tfring.broadcast, tfring.broadcast_
value = hvd.broadcast(tf.constant(hvd.rank()), root_rank=0)
assert value == 0
counter = tf.Variable(hvd.rank())
hvd.broadcast_([counter], root_rank=0)
assert counter == 0

# %% tfring.broadcast_variables
kernel = tf.Variable(tf.random.normal([4, 2], seed=hvd.rank()))
hvd.broadcast_variables([kernel], root_rank=0)

# %% tfring.assert_equal
hvd.assert_equal([kernel], when="after the broadcast")

# %% tfring.alltoall
parts, splits = hvd.alltoall(tf.fill([hvd.size()], hvd.rank()), splits=[1] * hvd.size())
assert parts.numpy().tolist() == list(range(hvd.size()))  # one row from each rank

# %% tfring.reducescatter, tfring.grouped_reducescatter
mine = hvd.reducescatter(tf.ones([hvd.size(), 2]), op=hvd.Sum)
assert mine.numpy().tolist() == [[hvd.size()] * 2]  # this rank's row of the sum
(mine,) = hvd.grouped_reducescatter([tf.ones([hvd.size()])], op=hvd.Sum)

# %% tfring.reduce
total = hvd.reduce(tf.constant(1.0), root_rank=0, op=hvd.Sum)
if hvd.rank() == 0:
    assert total == hvd.size()

# %% tfring.gather
everything = hvd.gather(tf.constant([hvd.rank()]), root_rank=0)
if hvd.rank() == 0:
    assert everything.numpy().tolist() == list(range(hvd.size()))

# %% tfring.scatter
part = hvd.scatter(tf.range(2 * hvd.size()), root_rank=0)
assert part.numpy().tolist() == [2 * hvd.rank(), 2 * hvd.rank() + 1]

# %% tfring.send, tfring.recv
if hvd.rank() == 0 and hvd.size() > 1:
    hvd.send(tf.constant([1, 2, 3]), dest=1)
if hvd.rank() == 1:
    assert hvd.recv(source=0, dtype=tf.int32).numpy().tolist() == [1, 2, 3]

# %% tfring.broadcast_object, tfring.broadcast_object_fn, tfring.allgather_object
options = hvd.broadcast_object({"layers": 3} if hvd.rank() == 0 else None)
assert options == {"layers": 3}
assert hvd.broadcast_object_fn(root_rank=0)(hvd.rank()) == 0
assert hvd.allgather_object({"rank": hvd.rank()})[0] == {"rank": 0}

# %% tfring.barrier
hvd.barrier()  # returns when all ranks have called it

# %% tfring.replicated


@tf.function
def loss_of(weights, rows):
    # The gradient of `weights` is the same on all ranks, and is not added up.
    return tf.reduce_sum(hvd.replicated(weights) * hvd.allgather(rows))


print(loss_of(tf.constant(2.0), tf.ones([1, 2])))

# %% tfring.step
with hvd.step():  # names the collectives of one step for the timeline and the report
    hvd.allreduce(1.0)

# %% tfring.ProcessSet, tfring.add_process_set, tfring.remove_process_set
# %% tfring.global_process_set
first = hvd.add_process_set([0])
if first.included():
    assert hvd.allreduce(1.0, op=hvd.Sum, process_set=first) == 1.0
hvd.remove_process_set(first)
assert hvd.global_process_set.size() == hvd.size()

# %% tfring.DistributedGradientTape
with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
    loss = tf.reduce_sum(kernel * float(hvd.rank() + 1))
(gradient,) = tape.gradient(loss, [kernel])
assert gradient.numpy()[0, 0] == (hvd.size() + 1) / 2  # the mean over all ranks

# %% tfring.mark_reduced
with tf.GradientTape() as tape:  # a plain one: this program averages the gradients itself
    loss = tf.reduce_sum(kernel * float(hvd.rank() + 1))
gradients = hvd.grouped_allreduce(tape.gradient(loss, [kernel]))
gradients = hvd.mark_reduced(gradients, [kernel])  # says so, for the checks of tfring's callbacks

# %% tfring.Compression, tfring.Compressor
half = hvd.allreduce(tf.ones([4]), compression=hvd.Compression.fp16)  # travels as float16
assert half.dtype == tf.float32

# %% tfring.GradientNorms
norms = hvd.GradientNorms(every=10)  # a callback of `fit`, with the norm of the gradients

# %% tfring.set_random_seed
hvd.set_random_seed(42)  # the same weights and random data on all ranks, different dropout

# %% tfring.shard
x, y = np.arange(64.0).reshape(32, 2), np.arange(32)
data = hvd.shard((x, y), batch_size=4)  # this rank's share, shuffled anew in each epoch
assert data.cardinality() == 32 // (4 * hvd.size())

# %% tfring.shard_batches
batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
for features, _ in hvd.shard_batches(batches):  # each batch is cut into parts of the ranks
    assert len(features) <= 4

# %% tfring.adapt
layer = tf.keras.layers.Normalization(axis=-1)
hvd.adapt(layer, x[hvd.rank() :: hvd.size()])  # mean and variance of the data of all ranks
np.testing.assert_allclose(layer.mean.numpy().ravel(), x.mean(0), rtol=1e-5)

# %% tfring.evaluate
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
hvd.broadcast_variables(model.variables, root_rank=0)
model.compile(loss="mse", metrics=["mae"])
found = hvd.evaluate(model, x, y, verbose=0)  # of all data, each rank computes a part
assert set(found) == {"loss", "mae"}

# %% tfring.start_timeline, tfring.stop_timeline
hvd.start_timeline(f"{sys.argv[1]}/timeline.json")  # on all ranks; opens in ui.perfetto.dev
hvd.allreduce(1.0)
hvd.stop_timeline()

# %% tfring.nccl_built, tfring.mpi_built, tfring.mpi_enabled, tfring.cuda_built
print(hvd.nccl_built(), hvd.mpi_built(), hvd.mpi_enabled(), hvd.cuda_built())

# %% tfring.join
for _ in range(hvd.rank() + 1):  # ranks with different numbers of batches
    hvd.allreduce(1.0, name="gradient")
last = hvd.join()  # waits for the others, whose collectives go on without this rank

# %% tfring.shutdown
hvd.shutdown()  # happens by itself when the program ends
