"""Two halves of the ranks that reduce on their own, as Horovod's users write it."""

import horovod.tensorflow as hvd
import tensorflow as tf

even_set = None
odd_set = None
hvd.init(process_sets="dynamic")
even_set = hvd.add_process_set(list(range(0, hvd.size(), 2)))
if hvd.size() > 1:
    odd_set = hvd.add_process_set(hvd.ProcessSet(range(1, hvd.size(), 2)))
mine = even_set if even_set.included() else odd_set
value = tf.constant([float(hvd.rank()), 1.0])


@tf.function
def sum_in_my_half(tensor):
    return hvd.allreduce(tensor, op=hvd.Sum, name="half", process_set=mine)


half = sum_in_my_half(value)
expected = [float(sum(mine.ranks)), float(mine.size())]
assert half.numpy().tolist() == expected, (half, expected)
everybody = hvd.allreduce(value, op=hvd.Sum, name="all")
assert everybody.numpy()[1] == hvd.size()
rows = hvd.allgather(tf.fill([hvd.rank() + 1, 1], hvd.rank()), process_set=mine)
assert rows.shape[0] == sum(rank + 1 for rank in mine.ranks)
root = mine.ranks[-1]
assert int(hvd.broadcast(tf.constant(hvd.rank()), root, process_set=mine)) == root
assert mine.rank() == mine.ranks.index(hvd.rank())
assert hvd.remove_process_set(even_set)
assert not hvd.remove_process_set(hvd.global_process_set)
print(f"RESULT half={half.numpy().tolist()} size={hvd.size()}")
