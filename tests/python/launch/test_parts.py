"""Options, placement, output and reports of the launcher."""

from __future__ import annotations

import io
import socket

import pytest
from run_options import refused, run_options

from tfring.launch.agents.addresses import open_rendezvous
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import (
    Slot,
    assign_slots,
    parse_hostfile,
    parse_hosts,
)
from tfring.launch.options.resolve import job_options
from tfring.launch.output.merger import PARTIAL_SECONDS, TAKEOVER_SECONDS, OutputMerger
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.settings.horovod import warnings_of
from tfring.runtime.ssh import SshOptions


def parse(*words):
    return run_options(*words, program=())


def test_hosts():
    assert parse_hosts("a:2, b-1.x:3,c") == [("a", 2), ("b-1.x", 3), ("c", 1)]
    lines = ["# all", "a slots=2", "", "b:3 # two", "c", ""]
    for end in ("\n", "\r\n"):
        assert parse_hostfile(end.join(lines)) == [("a", 2), ("b", 3), ("c", 1)]


@pytest.mark.parametrize(
    "text", ["a:0", "a:x", "a b", "-oProxyCommand=x:1", "a:1:2", "", " ", ",,,"]
)
def test_bad_hosts(text):
    with pytest.raises(UsageError):
        parse_hosts(text)


def test_bad_hostfile_line_is_named():
    with pytest.raises(UsageError, match="Line 2"):
        parse_hostfile("a slots=1\nb slots=many\n")


def test_placement():
    slots = assign_slots(4, [("a", 2), ("b", 1), ("c", 3)])
    assert slots == [
        Slot(0, "a", 0, 2, 0, 3),
        Slot(1, "a", 1, 2, 0, 1),
        Slot(2, "b", 0, 1, 1, 3),
        Slot(3, "c", 0, 1, 2, 3),
    ]
    assert len(assign_slots(None, [("a", 2), ("b", 2)])) == 4
    assert [s.host for s in assign_slots(2, [])] == [socket.gethostname()] * 2


@pytest.mark.parametrize(
    ("ranks", "hosts", "words"),
    [
        (None, [], "number of ranks is missing"),
        (0, [], "at least one"),
        (3, [("a", 2)], "more slots than the 2"),
        (2, [("localhost", 1)], r"such as -H node1:4\. Without one a host has 1 slot"),
        (2, [("a", 1), ("a", 1)], "twice"),
    ],
)
def test_bad_placement(ranks, hosts, words):
    with pytest.raises(UsageError, match=words):
        assign_slots(ranks, hosts)


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


def test_ranks_know_how_long_they_have_after_a_signal():
    for words, seconds in (
        ((), "30"),
        (("--stop-timeout", "4.5"), "4.5"),
        (("--stop-timeout", "0"), "0"),
    ):
        options = job_options(parse("-np", "1", *words, "x"))
        assert options.environment["TFRING_STOP_TIMEOUT"] == seconds
        assert read_settings(options.environment).stop_timeout == float(seconds)


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


def test_rank_0_listens_on_the_first_interface_that_is_there():
    with open_rendezvous("nope0,lo", None) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    with pytest.raises(OSError, match=r"nope0, nope1\. .*none of them is up.* do: .*\blo\b"):
        open_rendezvous("nope0,nope1", None)


def test_rank_0_listens_where_a_host_with_an_ipv6_address_reaches_it():
    try:
        listener = open_rendezvous(None, "::1")
    except OSError:
        pytest.skip("needs IPv6")
    with listener:
        assert listener.getsockname()[0] == "::1"


def test_a_link_local_address_is_refused(monkeypatch):
    class Probe(socket.socket):
        def connect(self, address):
            del address

        def getsockname(self):
            return ("fe80::1", 0, 0, 2)

    monkeypatch.setattr(socket, "socket", Probe)
    with pytest.raises(OSError, match=r"link-local.*--network-interface"):
        open_rendezvous(None, "127.0.0.1")


def test_ssh_command_has_no_secret_and_quotes():
    command = SshOptions(2222, "/k").command("h", ["/py thon", "agent.py"])
    assert command[-2:] == ["h", "'/py thon' agent.py"]
    assert "2222" in command and "/k" in command


def test_ssh_gives_up_after_the_launcher_would():
    def interval(*words):
        command = job_options(parse("-H", "a:1", *words, "x")).shell.command("a", ["x"])
        return next(word for word in command if word.startswith("ServerAliveInterval="))

    assert interval() == "ServerAliveInterval=21"  # three times, and the launcher after 60 s
    assert interval("--agent-timeout", "5") == "ServerAliveInterval=3"
    assert interval("--agent-timeout", "0") == "ServerAliveInterval=15"


class Screen:
    """An OutputMerger with one terminal for both streams."""

    def __init__(self):
        self.file = io.BytesIO()
        self.merger = OutputMerger(self.file, self.file, merge_lines=False)

    @property
    def text(self):
        return self.file.getvalue().decode()


# The output of two ranks, and the terminal. Rank 0 writes to stdout, rank 1 to stderr.
# TICK: the time after which an unfinished line is shown. END: the stream ends.
TICK, END = object(), object()
MERGED = {
    "complete lines": (
        [(0, b"one\ntw"), (1, b"bad\r\n"), (0, b"o\n")],
        "0| one\n1| bad\r\n0| two\n",
    ),
    "a progress bar that returns first": (
        [(0, b"\r0/2"), (0, TICK), (0, b"\r1/2"), (0, TICK), (0, b"\r2/2"), (0, TICK), (0, b"\n")],
        "0| 0/2\r0| 1/2\r0| 2/2\n",
    ),
    "a progress bar that returns last": (
        [(0, b"1/2\r2/2\r"), (0, b"done\n")],
        "0| 1/2\r0| 2/2\r0| done\n",
    ),
    "a line of another rank during a progress bar": (
        [(0, b"\r1/2"), (0, TICK), (1, b"warning\n"), (0, b"\r2/2\n")],
        "0| 1/2\n1| warning\n0| 2/2\n",
    ),
    "a last line without an end": (
        [(0, b"bye"), (0, END), (1, b"me too\n")],
        "0| bye\n1| me too\n",
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_merged_output(name):
    events, text = MERGED[name]
    screen = Screen()
    streams = [screen.merger.add(0, "stdout"), screen.merger.add(1, "stderr")]
    now = 0.0
    for rank, event in events:
        if event is TICK:
            now += PARTIAL_SECONDS
            screen.merger.tick(now)
        elif event is END:
            screen.merger.finish(streams[rank])
        else:
            screen.merger.feed(streams[rank], event, now)
    assert screen.text == text


def test_unfinished_line_appears_after_a_while_and_is_continued_without_a_second_prefix():
    screen = Screen()
    out = screen.merger.add(3, "stdout")
    screen.merger.feed(out, b"Epoch 1: ", 0.0)
    assert screen.merger.tick(0.01) == pytest.approx(PARTIAL_SECONDS)
    assert screen.text == ""
    screen.merger.tick(PARTIAL_SECONDS)
    assert screen.text == "3| Epoch 1: "
    screen.merger.feed(out, b"done\n", 1.0)
    assert screen.text == "3| Epoch 1: done\n"


def test_second_bar_waits_for_the_first_one():
    screen = Screen()
    a, b = screen.merger.add(0, "stdout"), screen.merger.add(1, "stdout")
    screen.merger.feed(a, b"\ra", 0.0)
    screen.merger.tick(PARTIAL_SECONDS)
    screen.merger.feed(b, b"\rb", 0.2)
    assert screen.merger.tick(0.2 + PARTIAL_SECONDS) == pytest.approx(0.2 + TAKEOVER_SECONDS)
    assert screen.text == "0| a"
    screen.merger.tick(0.2 + TAKEOVER_SECONDS)
    assert screen.text == "0| a\n1| b"


def test_characters_are_not_cut_in_two():
    screen = Screen()
    out = screen.merger.add(0, "stdout")
    snowman = "☃".encode()
    screen.merger.feed(out, b"x" + snowman[:2], 0.0)
    screen.merger.tick(1.0)
    assert screen.text == "0| x"
    screen.merger.feed(out, snowman[2:] + b"\n", 1.0)
    assert screen.text == "0| x☃\n"


def test_endless_line_does_not_fill_the_memory():
    screen = Screen()
    out = screen.merger.add(0, "stdout")
    for _ in range(40):
        screen.merger.feed(out, b"x" * (1 << 16), 0.0)
    assert len(out.pending) <= 1 << 20


# As TensorFlow 2.21 and 2.17 print them; the last line of the first part begins without a level.
INFO_LINES = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795293746.558261   20330 port.cc:153] oneDNN custom operations are on. You may see ...
I0000 00:00:1795293746.612440   20330 cpu_feature_guard.cc:227] This TensorFlow binary is optimized
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the ...
2026-05-02 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795293749.493645   20371 cuda_dnn.cc:8579] Unable to register cuDNN factory: \
Attempting to register factory for plugin cuDNN when one has already been registered
2026-05-02 10:00:00.123456: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:479] Unable \
to register cuFFT factory: ... when one has already been registered
W0000 00:00:1795293749.493645   20371 computation_placer.cc:177] computation placer already \
registered.
2026-05-02 10:00:00.123456: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT \
Warning: Could not find TensorRT
"""
OTHER_LINES = b"""\
W0000 00:00:1795293749.493644   20371 local_rendezvous.cc:412] Local rendezvous is aborting
E0000 00:00:1795293749.493645   20371 cuda_dnn.cc:477] Could not create cudnn handle
2026-05-02 10:00:00.123456: W tensorflow/core/framework/op_kernel.cc:1]  OP_REQUIRES failed
WARNING:tensorflow:from Python
I1121 20:15:00.123456 139 train.py:40] what the program logs
INFO: the program's own
"""


@pytest.mark.parametrize("wanted", [False, True])
def test_what_tensorflow_always_logs_is_printed_if_asked_for(wanted):
    out, err = io.BytesIO(), io.BytesIO()
    merger = OutputMerger(out, err, tensorflow_info=wanted, merge_lines=False)
    streams = [merger.add(rank, name) for rank in (0, 1) for name in ("stdout", "stderr")]
    for stream in streams:
        merger.feed(stream, INFO_LINES + OTHER_LINES, 0.0)
        merger.finish(stream)

    def shown(rank, name):
        prefix = f"{rank}| ".encode()
        lines = (out if name == "stdout" else err).getvalue().splitlines(keepends=True)
        return b"".join(x.removeprefix(prefix) for x in lines if x.startswith(prefix))

    assert shown(0, "stdout") == shown(1, "stdout") == INFO_LINES + OTHER_LINES
    for rank in (0, 1):
        assert shown(rank, "stderr") == (INFO_LINES if wanted else b"") + OTHER_LINES
