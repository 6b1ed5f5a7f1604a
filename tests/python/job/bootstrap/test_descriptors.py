"""File descriptors for the connections of large jobs: the limit is raised, or the need is named."""

from __future__ import annotations

from launcher_tools import run_python

SCRIPT = """
import resource
from tfring.job.bootstrap import mesh
from tfring.job.handshake.errors import BootstrapError

def limited(soft, hard, rank, size):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        mesh.ensure_descriptors(rank, size, 64, rendezvous=True)
    except BootstrapError as error:
        return str(error)
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

assert limited(300, 4096, 0, 1000) == 4096
assert limited(100, 700, 5, 60) == 700, "a rank of a full mesh"
assert limited(100, 400, 0, 2) == 400, "what the program opens is not known"
text = limited(300, 400, 0, 1000)
assert "rank 0 of 1000 needs 20" in text and "may have 400:" in text, text
assert "ulimit -Hn" in text
assert limited(100, 300, 5, 1000) == 300, "a rank of a ring needs few"
"""


def test_limits():
    """Of rank 0 in a large job, of a rank in a ring and in a full mesh."""
    done = run_python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
