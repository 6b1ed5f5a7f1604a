"""An embedding table cut over the ranks: ids travel with alltoall, rows come back with it."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
ROWS_PER_RANK, WIDTH, BATCH = 6, 4, 10
rows = ROWS_PER_RANK * hvd.size()

# Row i holds i everywhere, so that every lookup can be checked; rank i // ROWS_PER_RANK owns it.
first = ROWS_PER_RANK * hvd.rank()
mine = np.arange(first, first + ROWS_PER_RANK, dtype=np.float32)
table = tf.Variable(np.repeat(mine[:, None], WIDTH, axis=1))
ids = tf.random.stateless_uniform([BATCH], [7, hvd.rank()], maxval=rows, dtype=tf.int32)
weights = tf.cast(tf.range(1, BATCH + 1), tf.float32)[:, None]


@tf.function
def lookup(wanted):
    owner = wanted // ROWS_PER_RANK
    order = tf.argsort(owner, stable=True)
    splits = tf.math.bincount(owner, minlength=hvd.size(), maxlength=hvd.size())
    asked, asked_splits = hvd.alltoall(tf.gather(wanted, order), splits=splits, name="ids")
    found = tf.gather(table, asked - first)
    answered, _ = hvd.alltoall(found, splits=asked_splits, name="rows")
    return tf.gather(answered, tf.argsort(order))


with tf.GradientTape() as tape:
    vectors = lookup(ids)
    loss = tf.reduce_sum(vectors * weights)
np.testing.assert_array_equal(
    vectors.numpy(), np.repeat(ids.numpy()[:, None], WIDTH, axis=1).astype(np.float32)
)
gradient = tf.convert_to_tensor(tape.gradient(loss, table)).numpy()

all_ids = hvd.allgather(ids).numpy()
all_weights = np.tile(weights.numpy()[:, 0], hvd.size())
expected = np.zeros([rows], np.float32)
np.add.at(expected, all_ids, all_weights)
np.testing.assert_allclose(gradient[:, 0], expected[first : first + ROWS_PER_RANK])
equal_parts = hvd.alltoall(tf.range(hvd.size()) + 100 * hvd.rank())
assert equal_parts.numpy().tolist() == [100 * r + hvd.rank() for r in range(hvd.size())]
print(f"RESULT rows={rows}")
