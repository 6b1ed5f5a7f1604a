"""Which variables workers get; no cluster is needed."""

from tfring.launch.elastic.orders import StartWorker
from tfring.launch.engines import Where, rank_variables, with_own_first
from tfring.ray.settings import Resources


def test_ranks_on_uneven_nodes():
    workers = [Where("a", "10.0.0.1"), Where("b", "10.0.0.2"), Where("a", "10.0.0.1")]
    found = rank_variables(workers)
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    for prefix in ("TFRING_X_", "HOROVOD_"):
        values = [[int(one[prefix + name]) for name in names] for one in found]
        assert values == [[0, 3, 0, 2, 0, 2], [1, 3, 0, 1, 1, 2], [2, 3, 1, 2, 0, 1]]
    assert found[1]["HOROVOD_HOSTNAME"] == "10.0.0.2"
    assert all("CUDA_VISIBLE_DEVICES" not in one for one in found)


def test_the_gpu_at_the_local_rank_is_the_workers_own():
    workers = [Where("a", "h", ("3",)), Where("b", "i", ("0",)), Where("a", "h", ("1",))]
    shown = [one["CUDA_VISIBLE_DEVICES"] for one in rank_variables(workers)]
    assert shown == ["3,1", "0", "3,1"]
    # In an elastic job: whichever GPU a worker got, it is the one at its slot.
    for slot in range(4):
        for own in range(4):
            order = with_own_first(4, [str(own)], slot).split(",")
            assert order[slot] == str(own) and sorted(order) == list("0123")
    assert with_own_first(2, ["7"], 0) == "7"  # not a number that counts from 0


def test_slots_of_a_node():
    assert Resources(2, 0).slots({"CPU": 5.0}) == 2
    assert Resources(1, 1).slots({"CPU": 8.0, "GPU": 2.0}) == 2
    assert Resources(1, 1).slots({"CPU": 8.0}) == 0
    assert Resources(0.5, 0).of(3) == {"CPU": 1.5}


def test_a_later_worker_of_an_elastic_job():
    found = StartWorker(9, "n", 1, first=False, size=3, rank=2).variables()
    assert found["TFRING_X_ELASTIC_FIRST"] == "0"
    assert (found["HOROVOD_RANK"], found["HOROVOD_SIZE"]) == ("2", "3")
