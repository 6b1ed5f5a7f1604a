"""Python objects are the whole state. One worker is lost, and later the other."""

import sys

import faults
import horovod.tensorflow as hvd
import tensorflow as tf

FOLDER, BATCHES = sys.argv[1], 100

# Horovod: initialize Horovod.
hvd.init()


@hvd.elastic.run
def train(state):
    for state.batch in range(state.batch, BATCHES):
        if state.batch == 3 and hvd.rank() == 1:
            faults.power_cut(FOLDER, "first")
        if state.batch == 20:
            faults.power_cut(FOLDER, "second")
        total = hvd.allreduce(tf.constant(1.0), op=hvd.Sum, name="total")
        if hvd.rank() == 0:
            print("BATCH", state.batch, int(total), flush=True)
        state.commit()


train(hvd.elastic.ObjectState(bcast_object=hvd.broadcast_object, get_rank=hvd.rank, batch=0))
print("RESULT")
