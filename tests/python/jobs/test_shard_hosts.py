"""Elastic jobs on several hosts, whose optimizer states are sharded: a host is lost.

The copy of each part is on another host. Hosts are network namespaces with OpenSSH; the launcher
has one of its own.
"""

from __future__ import annotations

import pytest
from elastic_jobs import wait_for_batches
from elastic_runs import ElasticRun
from shard_jobs import FIT, assert_ends_like_one_process, lost_commits
from ssh_hosts import ssh_hosts

pytest.importorskip("tfring.runtime._native")

pytestmark = pytest.mark.slow


def trains_on(job, *hosts, ranks):
    """Waits until this many ranks train, on these hosts."""
    workers = wait_for_batches(job, ranks)
    assert {one["host"] for one in job.said if one["worker"] in workers} == set(hosts)


def lose(hosts, number, way):
    if way == "killed":
        hosts.kill(number)
    else:
        hosts.connect(number, connected=False)


@pytest.mark.parametrize(("lost", "way"), [(1, "killed"), (2, "cut off")])
def test_one_of_two_hosts_is_lost(tmp_path, lost, way):
    """With both of its ranks; once it is that of rank 0."""
    folder, left = tmp_path / "job", 3 - lost
    folder.mkdir()
    with ssh_hosts(tmp_path, 3) as made:
        options = ("-np", 4, "--min-np", 1, "-H", "h1:2,h2:2")
        first = made.hosts.inside(0)
        with ElasticRun(folder, *options, script=FIT, inside=first, PATH=made.path) as job:
            trains_on(job, "h1", "h2", ranks=4)
            lose(made.hosts, lost, way)
            trains_on(job, f"h{left}", ranks=2)
            assert lost_commits(job.said) == 0
            (folder / "stop").touch()
            assert job.finish() == 0
            assert_ends_like_one_process(job.said, folder, ranks=2)


def test_one_host_after_another_is_lost(tmp_path):
    """Three hosts, two, and one. Each part had a copy on another host again."""
    folder = tmp_path / "job"
    folder.mkdir()
    with ssh_hosts(tmp_path, 4) as made:
        options = ("-np", 4, "--min-np", 1, "-H", "h1:2,h2:1,h3:1")
        first = made.hosts.inside(0)
        with ElasticRun(folder, *options, script=FIT, inside=first, PATH=made.path) as job:
            trains_on(job, "h1", "h2", "h3", ranks=4)
            made.hosts.kill(1)
            trains_on(job, "h2", "h3", ranks=2)
            made.hosts.kill(2)
            trains_on(job, "h3", ranks=1)
            assert lost_commits(job.said) == 0
            (folder / "stop").touch()
            assert job.finish() == 0
            assert_ends_like_one_process(job.said, folder, ranks=1)
