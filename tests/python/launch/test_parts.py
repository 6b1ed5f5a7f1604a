"""Options, placement, output and reports of the launcher."""

from __future__ import annotations

import socket

import pytest
from run_options import refused, run_options

from tfring.launch.agents.addresses import open_rendezvous
from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.resolve import job_options
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.settings.horovod import warnings_of
from tfring.runtime.ssh import SshOptions


def parse(*words):
    return run_options(*words, program=())


def test_a_list_of_hosts_and_a_file_exclude_each_other(tmp_path, capsys):
    (tmp_path / "hosts").write_text("a slots=1\n")
    said = refused(capsys, "run", "-H", "a:2", "--hostfile", tmp_path / "hosts", "x")
    assert "not allowed with argument" in said


def test_horovodruns_options_become_settings():
    options = parse(
        "-np",
        "2",
        "--fusion-threshold-mb",
        "32",
        "--cache-capacity",
        "0",
        "--log-level",
        "debug",
        "--log-hide-timestamp",
        "--log-format",
        "json",
        "--no-stall-check",
        "--gloo",
        "python",
        "t.py",
        "--epochs",
        "3",
    )
    assert options.program == ("python", "t.py", "--epochs", "3")
    assert options.variables == {
        "TFRING_FUSION_THRESHOLD": str(32 << 20),
        "TFRING_CACHE_CAPACITY": "0",
        "TFRING_LOG_LEVEL": "debug",
        "TFRING_X_LOG_HIDE_TIME": "1",
        "TFRING_LOG_FORMAT": "json",
        "TFRING_STALL_CHECK_TIME_SECONDS": "0",
    }


def test_horovodruns_options_for_its_autotuner_set_variables_without_effect():
    words = ("--autotune-log-file", "log.csv", "--autotune-bayes-opt-max-samples", "9")
    options = parse("-np", "2", "--autotune", *words, "python", "t.py")
    assert options.variables == {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "9",
    }
    (warning,) = warnings_of(options.variables)
    assert "HOROVOD_AUTOTUNE_LOG have no effect: tfring does not tune itself" in warning
    off = parse("-np", "2", "--no-autotune", "python", "t.py")
    assert not warnings_of(off.variables)


@pytest.mark.parametrize(
    "words,reason",
    [
        (["--mpi"], "mpirun"),
        (["--cycle-time-ms", "1"], "tfring sends tensors as soon as they are ready"),
        (["--thread-affinity", "1"], "no counterpart"),
    ],
)
def test_refused_options_have_a_reason(words, reason, capsys):
    with pytest.raises(SystemExit):
        parse("-np", "2", *words, "python", "t.py")
    assert reason in capsys.readouterr().err


def test_a_variable_of_x_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("TFRING_FUSION_THRESHOLD", "abc")
    words = ("-np", "1", "-x", "TFRING_FUSION_THRESHOLD=1", "x")
    assert job_options(parse(*words)).environment["TFRING_FUSION_THRESHOLD"] == "1"
    monkeypatch.setenv("TFRING_FUSION_THRESHOLD", "1")
    with pytest.raises(UsageError, match="TFRING_FUSION_THRESHOLD"):
        job_options(parse("-np", "1", "-x", "TFRING_FUSION_THRESHOLD=abc", "x"))


def test_a_program_is_needed():
    with pytest.raises(UsageError, match="no program to run"):
        job_options(parse("-np", "2"))


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--start-timeout", "0"], "a number of seconds from 0.001 to"),
        (["--cache-capacity", "many"], "a whole number from 0 to"),
        (["--fusion-threshold-mb", "much"], "a number from 0 to 1048576"),
        (["--fusion-threshold-mb", "-1"], "a number from 0 to 1048576"),
        (["--fusion-threshold-mb", "99999999"], "a number from 0 to 1048576"),
        (["--timeline", ""], "a path"),
        (["--log-level", "loud"], "trace, debug, info, warning or error"),
    ],
)
def test_an_option_with_an_impossible_value_says_what_is_allowed(words, allowed, capsys):
    with pytest.raises(SystemExit):
        parse("-np", "1", *words, "x")
    said = capsys.readouterr().err
    assert f"argument {words[0]}" in said and f': "{words[1]}" has to be {allowed}' in said


def test_environment_counts_where_an_option_is_missing(monkeypatch):
    monkeypatch.setenv("TFRING_START_TIMEOUT", "7")
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth0,lo")
    job = job_options(parse("-np", "2", "python"))
    assert (job.start_timeout, job.interface) == (7, "eth0,lo")
    job = job_options(parse("-np", "2", "--start-timeout", "9", "--network-interface", "x", "p"))
    assert (job.start_timeout, job.interface) == (9, "x")
    options = job_options(parse("-np", "1", "--stop-timeout", "4.5", "x"))
    assert read_settings(options.environment).stop_timeout == 4.5


def test_rank_0_listens_on_the_first_interface_that_is_there():
    with open_rendezvous("nope0,lo", None) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError, match=r"nope0, nope1\. .*none of them is up.* do: .*\blo\b"):
        open_rendezvous("nope0,nope1", None)


def test_a_link_local_address_is_refused(monkeypatch):
    class Probe(socket.socket):
        def connect(self, address):
            del address

        def getsockname(self):
            return ("fe80::1", 0, 0, 2)

    monkeypatch.setattr(socket, "socket", Probe)
    with pytest.raises(OSError, match=r"link-local.*--network-interface"):
        open_rendezvous(None, "127.0.0.1")


def test_ssh_gives_up_after_the_launcher_would():
    command = SshOptions(2222, "/k").command("h", ["/py thon", "agent.py"])
    assert command[-2:] == ["h", "'/py thon' agent.py"] and {"2222", "/k"} < {*command}

    def interval(*words):
        command = job_options(parse("-H", "a:1", *words, "x")).shell.command("a", ["x"])
        return next(word for word in command if word.startswith("ServerAliveInterval="))

    assert interval() == "ServerAliveInterval=21"  # three times, and the launcher after 60 s
    assert interval("--agent-timeout", "5") == "ServerAliveInterval=3"
    assert interval("--agent-timeout", "0") == "ServerAliveInterval=15"


# The output of two ranks, and the terminal. Rank 0 writes to stdout, rank 1 to stderr.
# TICK: the time after which an unfinished line is shown. END: the stream ends.
