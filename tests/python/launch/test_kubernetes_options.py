"""What `tfring run --kubernetes` makes of its options, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("tfring._native")

from launcher_tools import environment

from tfring.launch.cli import main, make_parser
from tfring.launch.hosts.errors import UsageError
from tfring.launch.kubernetes.kinds import MAKERS
from tfring.launch.kubernetes.options import request_of
from tfring.launch.kubernetes.pods import STOPPED
from tfring.launch.kubernetes.shape import Shape

IMAGE = ("--image", "registry.example.com/train:1")


def request(*words, kind="indexed", command=("python", "train.py")):
    parsed = make_parser().parse_args(["run", "--kubernetes", kind, *IMAGE, *words, *command])
    found = request_of(parsed)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("words", "pods", "least", "slots"),
    [
        (["-np", "4"], 4, 4, 1),
        (["-np", "4", "--slots", "2"], 2, 2, 2),
        (["-np", "4", "--min-np", "2", "--slots", "2"], 2, 1, 2),
        (["-np", "4", "--max-np", "8", "--slots", "2"], 4, 2, 2),
        (["--min-np", "2", "--max-np", "8"], 8, 2, 1),
        (["--nnodes", "3"], 3, 3, 1),
        (["--nnodes", "2:4", "--nproc-per-node", "8"], 4, 2, 8),
        (["-H", "a:2,b:2,c:2"], 3, 3, 2),
        (["-H", "a:2,b:2", "-np", "4"], 2, 2, 2),
    ],
)
def test_pods_and_their_ranks(words, pods, least, slots):
    assert request(*words).shape == Shape(pods, least, slots)


def test_a_host_file_counts_as_hosts_do(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    assert request("--hostfile", str(tmp_path / "hosts")).shape == Shape(2, 2, 2)


def test_what_the_pods_get_to_know(monkeypatch):
    monkeypatch.setenv("DATA", "/data")
    found = request(
        "-np",
        "2",
        "-x",
        "DATA",
        "-x",
        "EPOCHS=3",
        "--log-level",
        "debug",
        "--horovod",
        "--claim",
        "one:/a",
        "--claim",
        "two:/b",
        "--grace-period",
        "60",
        command=("--", "train.py", "--epochs", "3"),
    )
    assert found.variables == {"DATA": "/data", "EPOCHS": "3", "TFRING_LOG_LEVEL": "debug"}
    assert found.command == ("python", "train.py", "--epochs", "3")
    assert "--horovod" in found.flags and "--start-timeout" not in found.flags
    assert found.claims == (("one", "/a"), ("two", "/b"))
    assert found.stop_seconds == 50 < found.grace_seconds


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "say how many ranks"),
        (["-np", "3", "--slots", "2"], r"\(3\) have to fill pods of 2 ranks"),
        (["-np", "4", "--min-np", "3", "--slots", "2"], r"--min-np \(3\)"),
        (["-np", "2", "--min-np", "4"], "--min-np 4"),
        (["--nnodes", "two"], "from 1 on"),
        (["--nproc-per-node", "2"], "needs --nnodes"),
        (["--nnodes", "2", "-np", "4"], "leave out -np"),
        (["-H", "a:2,b:3"], r"\[2, 3\] slots"),
        (["-H", "a:2,b:2", "-np", "3"], "have 4 slots"),
        (["-np", "2", "--timeline", "x.json"], "--timeline-filename has no meaning"),
        (["-np", "2", "--host-discovery-script", "x"], "--host-discovery-script has no meaning"),
        (["-np", "2", "--stop-timeout", "5"], "--stop-timeout has no meaning"),
        (["-np", "2", "-x", "WANDB_API_KEY=1"], "WANDB_API_KEY.*Secret"),
        (["-np", "2", "--job-name", "Train_1"], "Train_1"),
        (["-np", "2", "--job-name", "t" * 46], "at most 45"),
        (["-np", "2", "--claim", "checkpoints"], "NAME:PATH"),
        (["-np", "2", "--claim", "a:/x:ro"], "NAME:PATH"),
        (["-np", "2", "--claim", "a:/x", "--claim", "b:/x/"], "at /x is --claim a:/x already"),
        (["-np", "2", "--claim", "a:/dev/shm"], "/dev/shm is memory"),
        (["-np", "2", "--slots", "0"], "--slots 0"),
        (["--nnodes", "2", "--nproc-per-node", "0"], "2 pods of 0 ranks"),
        (["-np", "2", "--min-np", "0"], "at least 0 pods"),
        (["-np", "8", "--min-np", "2", "--max-np", "4"], "-np 8, --min-np 2 and --max-np 4"),
        (["-np", "2", "--namespace", "a.b"], "--namespace a.b"),
        (["-np", "2", "-x", "TFRING_PODS=9"], "-x TFRING_PODS"),
        (["-np", "2", "-x", "TFRING_STOPPED_EXIT_CODE=0"], "-x TFRING_STOPPED_EXIT_CODE"),
        (["-np", "2", "--image", "train :1"], "needs --image"),
        (["-np", "2", "--pod-memory", "16K"], "--pod-memory 16K"),
        (["-np", "2", "--pod-memory", "500m"], "--pod-memory 500m"),
        (["-np", "2", "--run-as", "0"], "--run-as 0"),
        (["-np", "2", "--run-as", "2147483648"], "--run-as 2147483648"),
        (["-np", "4", "--max-restarts", "600000000"], "--max-restarts 600000000.* to 536870911"),
        (["--nnodes", "100001"], "at most 100000"),
        (["-np", "2", "--elastic-timeout", "60"], "--elastic-timeout is for elastic jobs"),
        (["-np", "2", "--print-ranks", "x"], "--print-ranks x"),
        (["-np", "2", "--pod-memory", "\u0664Gi"], "--pod-memory"),
        (["-np", "2", "-x", "A\u00e9=1"], "NAME or NAME=VALUE"),
        (["-np", "2", "--claim", "a:/"], "at / is the image"),
        (["-np", "2", "--claim", "a:/etc/mpi"], "at /etc/mpi is what the MPI operator mounts"),
        (["-np", "2", "--grace-period", "10"], "--grace-period 10"),
        (["-np", "2", "--pod-memory", "lots"], "--pod-memory lots"),
    ],
)
def test_what_is_refused(words, says):
    with pytest.raises(UsageError, match=says):
        request(*words)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AUTHOR", "KEYS"])
def test_variables_that_are_no_secrets(name):
    assert request("-np", "2", "-x", f"{name}=4").variables[name] == "4"


def test_runtimes_of_two_namespaces_are_two():
    names = set()
    for words in ([], ["--namespace", "a"], ["--namespace", "b"]):
        runtime, job = MAKERS["trainer"](request("-np", "2", *words, kind="trainer"))
        names.add(runtime["metadata"]["name"])
        assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert names == {"train-runtime", "a-train-runtime", "b-train-runtime"}


def test_probes_of_workers_know_the_heartbeats():
    for kind, make in MAKERS.items():
        found = request("-np", "2", "-x", "TFRING_HEARTBEAT_SECONDS=8", kind=kind)
        *_, job = make(found)
        if kind == "mpijob":
            pod = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
            env = pod["containers"][0]["env"]
        elif kind == "trainer":
            env = job["spec"]["trainer"]["env"]
        else:
            env = job["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "TFRING_HEARTBEAT_SECONDS", "value": "8"} in env, kind


def test_names_that_kubernetes_takes():
    longest = "t" * 45
    claims = ("--claim", "1.data:/a", "--claim", "1.data:/b", "--claim", "shared-memory:/c")
    found = request("-np", "2", "--job-name", longest, "--namespace", "1team", *claims)
    assert (found.secret, found.namespace) == (f"{longest}-secret", "1team")
    for kind, make in MAKERS.items():
        text = json.dumps(make(found))
        for number, claim in enumerate(["1.data", "1.data", "shared-memory"]):
            volume = {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
            assert json.dumps(volume) in text, kind
            mount = {"name": f"claim-{number}", "mountPath": f"/{'abc'[number]}"}
            assert json.dumps(mount) in text, kind
    assert request("-np", "2", "--pod-memory", "16k", "--pod-cpus", "1.5").memory == "16k"


def test_an_image_is_needed_and_only_for_a_manifest():
    parse = make_parser().parse_args
    with pytest.raises(UsageError, match="needs --image"):
        request_of(parse(["run", "--kubernetes", "indexed", "-np", "2", "x"]))
    with pytest.raises(UsageError, match="--image needs --kubernetes"):
        request_of(parse(["run", *IMAGE, "-np", "2", "x"]))
    assert request_of(parse(["run", "-np", "2", "x"])) is None


@pytest.mark.parametrize("kind", sorted(MAKERS))
@pytest.mark.parametrize("words", [["-np", "4"], ["--nnodes", "1:4", "--nproc-per-node", "2"]])
def test_what_tfring_run_gets_in_the_pods_is_understood(kind, words):
    """Options of `tfring run` that do not exist would be found in the cluster only."""
    commands = []

    def find(value):
        if isinstance(value, dict):
            commands.append(value.get("command"))
            list(map(find, value.values()))
        elif isinstance(value, list):
            list(map(find, value))

    find(MAKERS[kind](request(*words, "-x", "EPOCHS=3", "--verbose", kind=kind)))
    inner = [words for words in commands if words and words[0] == "tfring"]
    assert inner
    for words in inner:
        parsed = make_parser().parse_args(words[1:])
        assert parsed.command == ["python", "train.py"]
        assert parsed.verbose and parsed.stop_timeout == 110
    probes = [words for words in commands if words and words[1:3] == ["-m", "tfring.live.probe"]]
    assert probes
    for words in probes:
        done = subprocess.run(
            [sys.executable, *words[1:], "--help"], env=environment(), capture_output=True
        )
        assert done.returncode == 0, done.stderr


def test_it_is_printed_and_nothing_is_started(capsys):
    assert main(["run", "--kubernetes", "indexed", *IMAGE, "-np", "2", "no-such-program"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# tfring run --kubernetes indexed")
    assert "create secret generic train-secret" in printed
    assert str(STOPPED) in printed
