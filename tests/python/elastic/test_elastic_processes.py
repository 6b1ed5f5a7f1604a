"""Elastic jobs of real processes, without TensorFlow: members of generations, and ends."""

from __future__ import annotations

import random
import signal
import time

from elastic_processes import ElasticJob


def test_a_spare_takes_the_place_in_the_next_generation():
    with ElasticJob([("a", 4)], np=3, min_np=2, max_np=3, spares=1) as job:
        job.wait_for_record(lambda members: len(members) == 3)
        (spare,) = job.wait(lambda: job.service.waiting)
        members = [one.worker for one in job.service.record.members]
        job.kill(members[0])
        record = job.wait_for_record(lambda members: True, after=1)
        assert record["generation"] == 2
        assert record["members"] == [*members[1:], spare]


def test_a_worker_that_slept_is_fenced_and_leaves_with_75():
    with ElasticJob([("a", 3)], kills=False, np=3, min_np=2, max_np=3) as job:
        first = job.wait_for_record(lambda members: len(members) == 3)
        asleep, victim, left = first["members"]
        job.kill(asleep, signal.SIGSTOP)
        job.kill(victim)  # the others have to stop now; one does not
        record = job.wait_for_record(lambda members: members[0] == left, after=1)
        assert asleep not in record["members"]
        assert any(f"worker {asleep} " in note and "goes on without" in note for note in job.notes)
        job.kill(asleep, signal.SIGCONT)
        job.wait(lambda: asleep in job.exit_codes)
        assert job.exit_codes == {victim: 137, asleep: 76}
        assert [line["worker"] for line in job.said if line["event"] == "dismissed"] == [asleep]


def test_workers_come_with_a_host_and_go_with_it():
    with ElasticJob([("a", 2)], np=2, min_np=1, max_np=3) as job:
        job.wait_for_record(lambda members: sorted(members) == [1, 2])
        job.service.set_hosts([("a", 2), ("b", 1)])
        record = job.wait_for_record(lambda members: sorted(members) == [1, 2, 3])
        assert record["generation"] == 2
        job.service.set_hosts([("a", 2)])
        job.wait_for_record(lambda members: sorted(members) == [1, 2], after=2)
        job.wait(lambda: job.exit_codes == {3: 76})
        ends = [note for note in job.notes if " ends: " in note]
        assert ends == [f"generation {number} ends: workers come or go" for number in (1, 2)]


def test_the_state_outlives_all_hosts_at_once():
    with ElasticJob([("a", 2)], np=2, min_np=1, max_np=2) as job:
        job.wait_for_record(lambda members: sorted(members) == [1, 2])
        job.service.set_hosts([("b", 2)])
        job.wait_for_record(lambda members: members[0] in (1, 2) and max(members) > 2, after=1)
        job.wait(lambda: job.exit_codes == {1: 76, 2: 76})
        job.wait_for_record(lambda members: sorted(members) == [3, 4], after=2)
        commits = [line["commit"] for line in job.said if line["event"] == "runs"]
        assert commits == sorted(commits)
        assert commits[2] > 0, "the training began anew"


def test_a_worker_may_leave():
    with ElasticJob([("a", 2)], np=2, min_np=1, max_np=2) as job:
        job.wait_for_record(lambda members: sorted(members) == [1, 2])
        job.kill(1, signal.SIGTERM)
        job.wait(lambda: job.exit_codes == {1: 76})
        job.wait_for_record(lambda members: members == [2, 3], after=1)
        assert not any("ended with exit code" in note for note in job.notes)


def test_the_job_waits_below_min_np():
    with ElasticJob([("a", 1), ("b", 1)], np=2, min_np=2, max_np=2) as job:
        job.wait_for_record(lambda members: sorted(members) == [1, 2])
        job.service.set_hosts([("a", 1)])
        job.wait(lambda: job.exit_codes == {2: 76})
        job.wait(lambda: "the job waits: it has 1 of 2 workers" in job.notes)
        assert job.service.phase == "gathering"
        job.service.set_hosts([("a", 1), ("c", 1)])
        job.wait_for_record(lambda members: members == [1, 3])


def test_the_job_ends_at_the_reset_limit():
    with ElasticJob([("a", 2)], np=2, min_np=2, max_np=2, reset_limit=1) as job:
        job.wait_for_record(lambda members: sorted(members) == [1, 2])
        job.kill(1)
        record = job.wait_for_record(lambda members: members == [2, 3])
        assert record["generation"] == 2
        job.kill(2)
        job.wait(lambda: set(job.exit_codes) >= {1, 2, 3} and job.ends)
        assert job.exit_codes[3] == 1
        ((code, reason),) = job.ends
        assert code == 1 and "limit of 1 resets" in reason
        assert job.service.phase == "over"


def test_fifty_kills_of_eight_workers():
    """In any state: some are killed before their generation is complete."""
    dice, generation, killed = random.Random(11), 0, set()
    with ElasticJob([("a", 4), ("b", 4)], np=8, min_np=2, max_np=8, join_interval=0) as job:
        while len(killed) < 50:
            record = job.wait_for_record(lambda members: len(members) >= 5, after=generation)
            generation = record["generation"]
            time.sleep(dice.choice((0, 0.01, 0.05)))
            alive = [w for w in job.pids if w not in killed]
            count = min(dice.choice((1, 2, 3, 4)), len(alive) - 1)  # the record may be an old one
            for worker in dice.sample(alive, max(count, 0)):
                job.kill(worker)
                killed.add(worker)
                time.sleep(dice.choice((0, 0.002, 0.03)))
        job.wait_for_record(lambda members: len(members) == 8 and killed.isdisjoint(members))
        job.wait(lambda: set(job.exit_codes) == killed)
        assert set(job.exit_codes.values()) == {137}
        check_records(job.said)


def check_records(said):
    """Checks that a generation is the same on all workers, and that each worker's ascend."""
    members, last = {}, {}
    for line in said:
        if line["event"] == "record":
            number, worker = line["generation"], line["worker"]
            assert members.setdefault(number, line["members"]) == line["members"]
            assert last.get(worker, 0) < number
            last[worker] = number
