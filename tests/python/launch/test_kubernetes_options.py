"""The output of `tfring manifest` for its options, and the options that it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("tfring.runtime._native")

from launcher_tools import environment
from run_options import refused

from tfring.launch.cli import main, parser_of
from tfring.launch.kubernetes.kinds import MAKERS
from tfring.launch.kubernetes.options import request_of
from tfring.launch.kubernetes.pods import STOPPED

IMAGE = ("--image", "registry.example.com/train:1")


def request(*words, kind="indexed", command=("python", "train.py")):
    return request_of(parser_of("manifest").parse_args(["--kind", kind, *IMAGE, *words, *command]))


def test_what_the_pods_get_to_know(monkeypatch):
    monkeypatch.setenv("DATA", "/data")
    found = request(
        *("--nnodes", "2"),
        *("-x", "DATA"),
        *("-x", "EPOCHS=3"),
        *("--log-level", "debug"),
        *("--start-timeout", "900"),
        "--horovod",
        *("--print-ranks", "3,0-1"),
        *("--claim", "one:/a"),
        *("--claim", "two:/b"),
        *("--grace-period", "60"),
        command=("--", "train.py", "--epochs", "3"),
    )
    assert found.variables == {
        "DATA": "/data",
        "EPOCHS": "3",
        "TFRING_LOG_LEVEL": "debug",
        "TFRING_START_TIMEOUT": "900",
    }
    assert found.command == ("python", "train.py", "--epochs", "3")
    assert found.flags == ("--horovod", "--print-ranks", "0-1,3")
    assert found.claims == (("one", "/a"), ("two", "/b"))
    assert found.stop_seconds == 50 < found.grace_seconds


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--nnodes, the number of pods, is missing"),
        (["--nnodes", "two"], "two is neither a number nor MIN:MAX"),
        (
            ["--nnodes", "2", "--nproc-per-node", "0"],
            "0 is not a whole number from 1 to 100000",
        ),
        (["--nnodes", "2", "-np", "4"], "tfring manifest: there is no option -np."),
        (
            ["--nnodes", "2", "--timeline", "x.json"],
            "tfring manifest: there is no option --timeline.",
        ),
        (
            ["--nnodes", "2", "--stop-timeout", "5"],
            "tfring manifest: there is no option --stop-timeout.",
        ),
        (["--nnodes", "2", "-x", "WANDB_API_KEY=1"], "-x WANDB_API_KEY looks like a secret"),
        (["--nnodes", "2", "--claim", "checkpoints"], "NAME:PATH"),
        (["--nnodes", "2", "--claim", "a:/x:ro"], "NAME:PATH"),
        (
            ["--nnodes", "2", "-x", "TFRING_PODS=9"],
            "-x TFRING_PODS: the manifest sets this variable",
        ),
        (["--nnodes", "2", "-x", "TFRING_STOPPED_EXIT_CODE=0"], "-x TFRING_STOPPED_EXIT_CODE"),
        (["--nnodes", "2", "-x", "TFRING_LOG_LEVEL=loud"], "TFRING_LOG_LEVEL"),
        (["--nnodes", "2", "--run-as", "0"], "--run-as: 0 is not"),
        (["--nnodes", "2", "--elastic-timeout", "60"], "--elastic-timeout is for elastic jobs"),
        (["--nnodes", "2", "--print-ranks", "x"], "--print-ranks: x: it has to be ranks"),
        (["--nnodes", "2", "--grace-period", "10"], "--grace-period: 10 is not"),
    ],
)
def test_what_is_refused(words, says, capsys):
    assert says in refused(capsys, "manifest", *IMAGE, *words, "python", "train.py")


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AUTHOR", "KEYS"])
def test_variables_that_are_no_secrets(name):
    assert request("--nnodes", "2", "-x", f"{name}=4").variables[name] == "4"


def test_probes_of_workers_know_the_heartbeats():
    for kind, make in MAKERS.items():
        found = request("--nnodes", "2", "-x", "TFRING_HEARTBEAT_SECONDS=8", kind=kind)
        *_, job = make(found)
        if kind == "mpijob":
            pod = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
            env = pod["containers"][0]["env"]
        elif kind == "trainer":
            env = job["spec"]["trainer"]["env"]
        else:
            env = job["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "TFRING_HEARTBEAT_SECONDS", "value": "8"} in env, kind


def test_volumes_of_claims():
    claims = ("--claim", "1.data:/a", "--claim", "1.data:/b", "--claim", "shared-memory:/c")
    found = request("--nnodes", "2", "--job-name", "mine", *claims)
    assert found.secret_name == "mine-secret"
    for kind, make in MAKERS.items():
        text = json.dumps(make(found))
        for number, claim in enumerate(["1.data", "1.data", "shared-memory"]):
            volume = {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
            assert json.dumps(volume) in text, kind
            mount = {"name": f"claim-{number}", "mountPath": f"/{'abc'[number]}"}
            assert json.dumps(mount) in text, kind


def test_the_help_says_how_often_a_manifest_restarts():
    said = " ".join(parser_of("manifest").format_help().split())
    assert f"(default 0, of a manifest {request('--nnodes', '2').restarts})" in said


def test_an_image_is_needed_and_only_for_a_manifest(capsys):
    said = refused(capsys, "manifest", "--nnodes", "2", "x")
    assert "Name an image" in said
    assert "there is no option --image." in refused(capsys, "run", *IMAGE, "-np", "2", "x")


@pytest.mark.parametrize("kind", sorted(MAKERS))
@pytest.mark.parametrize("words", [["--nnodes", "4"], ["--nnodes", "1:4", "--nproc-per-node", "2"]])
def test_what_tfring_run_gets_in_the_pods_is_understood(kind, words, tmp_path, monkeypatch):
    """Otherwise unknown options of `tfring run` would fail only in the cluster."""
    commands = []

    def find(value):
        if isinstance(value, dict):
            commands.append(value.get("command"))
            list(map(find, value.values()))
        elif isinstance(value, list):
            list(map(find, value))

    monkeypatch.setenv("EPOCHS", "3")  # as in the pod
    find(MAKERS[kind](request(*words, "-x", "EPOCHS=3", "--verbose", kind=kind)))
    inner = [words for words in commands if words and words[0] == "tfring"]
    assert inner
    for words in inner:
        (tmp_path / "hostfile").write_text("a slots=1\n")  # instead of the operator's
        words = [word.replace("/etc/mpi/hostfile", f"{tmp_path}/hostfile") for word in words]
        parsed = parser_of(words[1]).parse_args(words[2:])
        assert parsed.command == ["python", "train.py"]
        assert parsed.verbose and parsed.stop_timeout == 110
    probe = ["-m", "tfring.observe.live.probe"]
    probes = [words for words in commands if words and words[1:3] == probe]
    assert probes
    for words in probes:
        done = subprocess.run(
            [sys.executable, *words[1:], "--help"], env=environment(), capture_output=True
        )
        assert done.returncode == 0, done.stderr


def test_it_is_printed_and_nothing_is_started(capsys):
    names = ("--namespace", "a b", "--secret", "one\ntwo")
    assert main(["manifest", *IMAGE, "--nnodes", "2", *names, "no-such-program"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# tfring manifest --image")
    assert "\n# kubectl -n 'a b' create secret generic $'one\\x0atwo' --from-literal" in printed
    assert str(STOPPED) in printed
