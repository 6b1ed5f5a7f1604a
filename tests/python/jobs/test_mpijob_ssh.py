"""The ssh and sshd settings of examples/kubernetes, with OpenSSH and keys like the operator's."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from launcher_tools import ROOT, wait_until

FOLDER = ROOT / "examples" / "kubernetes"
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")


def make_key(path):
    command = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-N", "", "-f", path]
    subprocess.run(list(map(str, command)), check=True)


def file_of_the_image(tmp_path, name):
    """A file of the image, with a different folder for the keys."""
    path = tmp_path / name
    path.write_text((FOLDER / name).read_text().replace("/srv/tfring", str(tmp_path)))
    return str(path)


@pytest.fixture
def port(tmp_path):
    """Starts an sshd with the key of a job; gives its port."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("needs ssh and sshd: apt-get install openssh-client openssh-server")
    (tmp_path / ".ssh").mkdir(mode=0o700)
    make_key(tmp_path / ".ssh" / "id_rsa")
    shutil.copy(tmp_path / ".ssh" / "id_rsa.pub", tmp_path / ".ssh" / "authorized_keys")
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd gives its rights up; the image has it
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = str(probe.getsockname()[1])
    command = [SSHD, "-De", "-p", free, "-f", file_of_the_image(tmp_path, "sshd_tfring")]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        assert wait_until(lambda: "listening" in server.stderr.readline().lower(), 30)
        yield free
    finally:
        server.terminate()
        server.communicate()


def ssh(tmp_path, port):
    words = ["ssh", "-F", file_of_the_image(tmp_path, "ssh_tfring.conf"), "-T"]
    command = [*words, "-o", "BatchMode=yes", "-p", port, "127.0.0.1", "echo reached"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_key_of_the_job_opens_its_workers(tmp_path, port):
    done = ssh(tmp_path, port)
    assert (done.returncode, done.stdout) == (0, "reached\n"), done.stderr


def test_a_host_with_another_key_is_none_of_the_job(tmp_path, port):
    make_key(tmp_path / "other")
    shutil.copy(tmp_path / "other.pub", tmp_path / ".ssh" / "id_rsa.pub")
    done = ssh(tmp_path, port)
    assert done.returncode == 255 and "Host key verification failed" in done.stderr
