"""One example for each name of `tfring.store` and `tfring.checkpoint`, without TensorFlow.

    python examples/reference/without_tensorflow.py FOLDER

The checkpoints go into FOLDER.
"""

# %%
import sys
from datetime import timedelta

import numpy as np

from tfring.checkpoint import Checkpointer
from tfring.store import PrefixStore, TCPStore

folder = sys.argv[1]

# %% tfring.store.TCPStore, tfring.store.Store
store = TCPStore("localhost", 0, world_size=1, is_master=True, timeout=timedelta(seconds=60))
store.set("address/0", "10.0.0.1")
assert store.get("address/0") == b"10.0.0.1"  # waits until the key is there
assert store.add("ready", 1) == 1

# %% tfring.store.PrefixStore
job = PrefixStore("job7", store)
job.set("state", "starts")
assert store.get("job7/state") == b"starts"

# %% tfring.store.Watch, tfring.store.Change
with store.watch("workers/") as watch:
    store.set("workers/1", "here")
    change = watch.next()
assert change.key == "workers/1" and change.value == b"here"

# %% tfring.checkpoint.Checkpointer
with Checkpointer(folder, keep_last=3) as checkpoints:
    checkpoints.save({"w": np.ones(4)}, step=100, metadata={"epoch": 2}, must=True)

# %% tfring.checkpoint.Checkpoint, tfring.checkpoint.CheckpointInfo
with Checkpointer(folder) as checkpoints:
    found = checkpoints.load()  # the newest valid one, or None
assert found.info.step == 100 and found.info.metadata == {"epoch": 2}
np.testing.assert_array_equal(found.state["w"], np.ones(4))
store.close()
