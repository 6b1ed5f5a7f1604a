"""RayExecutor: jobs whose workers stay."""

import os
import re

import pytest
import ray
from ray_state import alive_actors, wait_until_nothing_is_left

from tfring.observe.recorder.choice import known_jobs
from tfring.observe.recorder.places import short
from tfring.ray import RayExecutor, static_job

pytestmark = pytest.mark.usefixtures("nothing_left")
SETTINGS = RayExecutor.create_settings(timeout_s=120)


def _sum_of_ranks():
    """A function that trains nothing: what workers call, by value as Ray pickles it."""

    def work(offset=0):
        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        total = core.allreduce(np.array([hvd.rank() + offset]), name="sum", op=hvd.Sum)
        return hvd.rank(), hvd.size(), int(total[0])

    return work


def test_results_by_rank_on_two_nodes(cluster):
    """Arguments, results in order, local ranks of each node, and several runs of one job."""

    def where():
        import tfring as hvd

        hvd.init()
        node = ray.get_runtime_context().get_node_id()
        return node, hvd.rank(), hvd.local_rank(), hvd.cross_rank(), os.environ["HOROVOD_RANK"]

    with RayExecutor(SETTINGS, num_hosts=2, num_workers_per_host=2) as executor:
        executor.start(extra_env_vars={"SAID": "this"})
        assert executor.run(_sum_of_ranks(), [10]) == [(r, 4, 46) for r in range(4)]
        places = executor.run(where)
        assert [place[1:] for place in places] == [
            (0, 0, 0, "0"),
            (1, 1, 0, "1"),
            (2, 0, 1, "2"),
            (3, 1, 1, "3"),
        ]
        assert places[0][0] == places[1][0] != places[2][0] == places[3][0]
        refs = executor.run_remote(_sum_of_ranks(), kwargs={"offset": 1})
        assert ray.get(refs) == [(r, 4, 10) for r in range(4)]
        assert executor.execute(lambda _: os.environ["SAID"]) == ["this"] * 4


def test_a_job_that_is_over_is_known_with_its_report():
    def jobs_of_ray():
        return {one.job: one for one in known_jobs() if one.job.startswith("ray-")}

    before = jobs_of_ray()
    with RayExecutor(SETTINGS, num_workers=2) as executor:
        executor.start()
        executor.run(_sum_of_ranks())
        (job,) = jobs_of_ray().keys() - before.keys()
        assert jobs_of_ray()[job].runs
    over = jobs_of_ray()[job]
    assert over.entry.end["state"] == "ended" and not over.generations
    assert over.entry.end["report"]["text"].startswith(f"Job {short(job)}: 2 ranks\n")


def test_objects_of_a_class_keep_their_state():
    """start(executable_cls), execute and execute_single, with Horovod's older names."""

    class Counter:
        def __init__(self, start, step=1):
            import tfring as hvd

            hvd.init()
            self.count, self.step, self.rank = start, step, hvd.rank()

        def add(self):
            self.count += self.step * (self.rank + 1)
            return self.count

    executor = RayExecutor(SETTINGS, num_hosts=1, num_slots=2, cpus_per_slot=1)
    executor.start(executable_cls=Counter, executable_args=[5], executable_kwargs={"step": 2})
    assert executor.execute(lambda counter: counter.add()) == [7, 9]
    assert executor.execute(lambda counter: counter.add()) == [9, 13]
    assert executor.execute_single(lambda counter: counter.count) == 9
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(RuntimeError, match=r"Call start\(\) first"):
        executor.run(_sum_of_ranks())


def test_the_error_of_a_rank_is_named_and_the_job_can_go_on():
    """Other ranks wait in a collective meanwhile; afterwards the same workers form a new job."""

    def fails(how):
        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        if hvd.rank() == 1:
            if how == "exit":
                raise SystemExit(3)
            raise KeyError("the missing column")
        core.allreduce(np.zeros(4), name="waits", op=hvd.Sum)

    with RayExecutor(SETTINGS, num_workers=3) as executor:
        executor.start()
        with pytest.raises(RuntimeError) as caught:
            executor.run(fails, ["error"])
        text = str(caught.value)
        assert text.startswith("the function failed on rank 1:"), text
        assert re.search(r"repr=rank 1 of 3", text) and "in fails" in text, text
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if line.strip() and not line.strip(" ^~"):  # carets belong to a line of code
                assert lines[number - 2].startswith("  File "), text
        assert isinstance(caught.value.__cause__, KeyError)
        # What the others say is a consequence, and names the rank and its error.
        assert "then on rank" in text and "the missing column" in text.split("then on")[1], text
        assert executor.run(_sum_of_ranks()) == [(r, 3, 3) for r in range(3)]
        with pytest.raises(RuntimeError, match=r"on rank 1:(?s:.*)sys\.exit\(3\)"):
            executor.run(fails, ["exit"])
        assert executor.run(_sum_of_ranks()) == [(r, 3, 3) for r in range(3)]


def test_an_error_that_the_worker_does_not_see_ends_the_others_calls():
    """Ray cannot pickle a result; the other ranks wait for that rank in a collective meanwhile."""

    def cannot_be_sent():
        import threading

        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        if hvd.rank() == 1:
            return threading.Lock()
        core.allreduce(np.zeros(4), name="waits", op=hvd.Sum)

    with RayExecutor(SETTINGS, num_workers=3) as executor:
        executor.start()
        with pytest.raises(RuntimeError) as caught:
            executor.run(cannot_be_sent)
        text = str(caught.value)
        assert text.startswith("the function failed on rank 1:") and "pickle" in text, text
        assert "did not end" not in text, text
        assert executor.run(_sum_of_ranks()) == [(r, 3, 3) for r in range(3)]


def test_a_rank_that_is_killed_ends_the_run():
    def dies():
        import signal

        import numpy as np

        import tfring as hvd
        from tfring.runtime._native import core

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        core.allreduce(np.zeros(4), name="waits", op=hvd.Sum)

    with RayExecutor(SETTINGS, num_workers=2) as executor:
        executor.start()
        with pytest.raises(RuntimeError, match="the process of rank 1 is gone"):
            executor.run(dies)
        with pytest.raises(RuntimeError, match="processes of ranks 1 have ended"):
            executor.run(_sum_of_ranks())
        executor.shutdown()
        executor.start()
        assert executor.run(_sum_of_ranks()) == [(0, 2, 1), (1, 2, 1)]


def test_a_rank_that_does_not_leave_after_an_error_is_ended(monkeypatch):
    """Its process counts as ended, so it has to be."""
    monkeypatch.setattr(static_job, "_GRACE_SECONDS", 5.0)

    def fails():
        import time

        import tfring as hvd
        import tfring.ray.worker

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("the missing column")
        tfring.ray.worker.leave = lambda error: time.sleep(3600)

    with RayExecutor(SETTINGS, num_workers=2) as executor:
        executor.start()
        with pytest.raises(RuntimeError, match="the missing column"):
            executor.run(fails)
        with pytest.raises(RuntimeError, match=r"processes of ranks 0\b.*have ended"):
            executor.run(_sum_of_ranks())
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(executor.workers[0].where.remote(), timeout=60)


@pytest.mark.parametrize("again", [False, True])
def test_shutdown_after_the_shutdown_of_ray(cluster, again):
    """Workers end with the connection that started them; another cluster is not begun or asked."""
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    ray.shutdown()
    try:
        if again:
            ray.init(address=cluster.address, log_to_driver=False)
        executor.shutdown()
        assert ray.is_initialized() == again
    finally:
        if not ray.is_initialized():
            ray.init(address=cluster.address, log_to_driver=False)


def test_an_object_that_cannot_be_made_leaves_nothing():
    class Broken:
        def __init__(self):
            raise ValueError("no such model")

    executor = RayExecutor(SETTINGS, num_workers=2)
    with pytest.raises(RuntimeError, match=r"on rank \d:(?s:.*)no such model"):
        executor.start(executable_cls=Broken)
    wait_until_nothing_is_left()


def test_an_executor_that_is_dropped_leaves_nothing():
    """As when a cell of a notebook is run twice: nobody has called shutdown."""
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    assert executor.run(_sum_of_ranks()) == [(0, 2, 1), (1, 2, 1)]
    del executor
    wait_until_nothing_is_left()


def test_no_place():
    settings = RayExecutor.create_settings(placement_group_timeout_s=1)
    executor = RayExecutor(settings, num_workers=2, cpus_per_worker=3)
    with pytest.raises(TimeoutError, match=r"no place for 2 workers within 1 s.*\bCPU.*free"):
        executor.start()
    wait_until_nothing_is_left()


def test_within_the_placement_group_of_an_actor():
    """As in a trial of Ray Tune: no second group is made, and the trial's own one stays."""

    sum_of_ranks = _sum_of_ranks()

    @ray.remote(num_cpus=1)
    class Trial:
        def run(self):
            before = len(ray.util.placement_group_table())
            with RayExecutor(SETTINGS, num_workers=2) as executor:
                executor.start()
                found = executor.run(sum_of_ranks)
                return found, len(ray.util.placement_group_table()) - before

    group = ray.util.placement_group([{"CPU": 1}] * 3, strategy="SPREAD")
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_capture_child_tasks=True
    )
    trial = Trial.options(scheduling_strategy=strategy).remote()
    found, groups_made = ray.get(trial.run.remote())
    assert found == [(0, 2, 1), (1, 2, 1)]
    assert groups_made == 0
    ray.kill(trial)
    ray.util.remove_placement_group(group)


def test_a_placement_group_that_is_too_small():
    @ray.remote(num_cpus=1)
    class Trial:  # an actor keeps its CPU while it waits
        def run(self):
            settings = RayExecutor.create_settings(placement_group_timeout_s=3)
            try:
                RayExecutor(settings, num_workers=2).start()
            except TimeoutError as error:
                return str(error)
            return "no error"

    group = ray.util.placement_group([{"CPU": 1}] * 2, strategy="SPREAD")
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
    trial = Trial.options(scheduling_strategy=strategy).remote()
    try:
        said = ray.get(trial.run.remote())
    finally:
        ray.kill(trial)
        ray.util.remove_placement_group(group)
    # One has a place, but may not have started yet.
    expected = r"'CPU': 1.*no place for [12] of 2 workers within 3 s\. Make it larger"
    assert re.search(expected, said), said


def test_many_tasks_in_a_row_leave_no_actor():
    """TFRING_TEST_ROUNDS=100 for as many jobs, each with its own workers."""
    jobs = int(os.environ.get("TFRING_TEST_ROUNDS", "4"))
    for _ in range(jobs):
        with RayExecutor(SETTINGS, num_workers=1) as executor:
            executor.start()
            assert executor.run(_sum_of_ranks()) == [(0, 1, 0)]
    wait_until_nothing_is_left()
    # And 100 functions on the same workers.
    with RayExecutor(SETTINGS, num_workers=2) as executor:
        executor.start()
        for number in range(100):
            assert executor.run(lambda n: n * 2, [number]) == [number * 2] * 2
        assert len(alive_actors()) == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "the number of workers is missing"),
        ({"num_workers": 2, "num_hosts": 1}, "give num_workers alone"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "give use_gpu=True"),
        ({"num_workers": 1, "gpus_per_worker": 0, "use_gpu": True}, "1 or more"),
        ({"num_hosts": 2, "placement_group_strategy": "PACK"}, "STRICT_SPREAD"),
        (
            {"num_workers": 2, "max_workers": 4},
            "max_workers=4 is for elastic jobs only.*min_workers",
        ),
        ({"num_workers": 2, "reset_limit": 0}, "reset_limit=0 is for elastic jobs only"),
        ({"num_workers": 2, "cooldown_range": (1, 2)}, r"cooldown_range=\(1, 2\) is for elastic"),
        ({"num_workers": 2, "elastic_timeout": 9}, "elastic_timeout=9 is for elastic jobs only"),
        (
            {"num_workers": 2, "override_discovery": False},
            "override_discovery=False is for elastic",
        ),
        ({"min_workers": 2, "num_hosts": 1}, "num_hosts=1 is not for elastic jobs"),
        ({"min_workers": 2, "num_slots": 1}, "num_workers_per_host=1 is not for elastic jobs"),
        ({"min_workers": 2, "placement_group_strategy": "PACK"}, "placement_group_strategy='PACK'"),
    ],
)
def test_impossible_parameters(parameters, message):
    with pytest.raises(ValueError, match=message):
        RayExecutor(SETTINGS, **parameters)
