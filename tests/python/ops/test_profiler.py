"""Collectives in the profiles that TensorFlow takes."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow")
hvd = pytest.importorskip("tfring")


def test_a_profile_has_every_collective_from_its_call_to_its_end(tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    @tf.function
    def reduce(x):
        return hvd.allreduce(x, name="grad", op=hvd.Sum), hvd.broadcast(x, 0, name="weights")

    def profile(folder):
        tf.profiler.experimental.start(str(folder))
        try:
            for _ in range(3):
                reduce(data)
        finally:
            tf.profiler.experimental.stop()

    hvd.init()
    try:
        data = tf.ones([256])
        reduce(data)  # before the profile: not in it
        # A profile whose parts TensorFlow cannot put together breaks its memory, which the next
        # ones notice.
        for i in range(3):
            profile(tmp_path / str(i))
    finally:
        hvd.shutdown()
    (file,) = (tmp_path / "2").rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(file.read_bytes())
    found = []
    for plane in space.planes:
        stats = {number: one.name for number, one in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            if name.startswith(("allreduce of", "broadcast of")):
                values = {
                    stats[s.metadata_id]: s.int64_value or s.uint64_value for s in event.stats
                }
                found.append((name, values["bytes"], event.duration_ps > 0))
    expected = [("allreduce of tensor 'grad'", 1024, True)] * 3
    assert sorted(found) == expected + [("broadcast of tensor 'weights'", 1024, True)] * 3
