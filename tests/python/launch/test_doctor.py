"""What `tfring doctor` finds."""

from __future__ import annotations

import functools
import json
import subprocess

import pytest
from launcher_tools import run_python

from tfring.launch import doctor, installed
from tfring.launch.cli import main


def findings_of(check, monkeypatch, **variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    findings = installed.Findings()
    check(findings)
    return findings


def test_whole_command_says_what_is_there_and_fails_without_the_runtime(tmp_path):
    done = run_python("-m", "tfring", "doctor", TFRING_X_LIB_DIR=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("WRONG: the compiled runtime cannot be loaded")
    for name in ("\ntfring:", "\nPython:", "\nTensorFlow:", "\nCPU:", "\nTFRING_X_LIB_DIR:"):
        assert name in done.stdout
    assert str(tmp_path) in done.stdout


def test_loaded_runtime_is_described(monkeypatch):
    pytest.importorskip("tfring.runtime._native")
    findings = findings_of(installed.binding, monkeypatch)
    assert not findings.problems
    assert "transports" in dict(findings.lines)


def test_op_library_for_the_tensorflow_that_is_there(monkeypatch):
    native = pytest.importorskip("tfring.runtime._native")
    if not any(native.library_dir().glob("**/build.json")):
        pytest.skip("the op library is not built")
    findings = findings_of(installed.tensorflow, monkeypatch)
    assert not findings.problems
    lines = dict(findings.lines)
    assert lines["TensorFlow ops"].startswith("load; built for TensorFlow 2.")
    version = lines["TensorFlow ops"].partition("built for TensorFlow ")[2].partition(" ")[0]
    folder = native.ops_folder(version)
    expected = "possible" if (folder / "_tfring_xla.so").exists() else "not"
    assert lines["jit_compile=True"].startswith(expected)


def package(folder, name, version):
    """A package of one module, as pip leaves it: its name need not be the module's."""
    module = name.partition("-")[0]
    (folder / module).mkdir(exist_ok=True)
    (folder / module / "__init__.py").touch()
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (info / "top_level.txt").write_text(f"{module}\n")


def test_versions_of_nightly_packages(tmp_path, monkeypatch):
    package(tmp_path, "keraz-nightly", "3.16.0.dev1")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed._version_of("keraz") == "3.16.0.dev1 (keraz-nightly)"
    package(tmp_path, "keraz", "3.15.1")  # whose files are those of the other
    assert {*installed._version_of("keraz").split(", ")} == {
        "3.16.0.dev1 (keraz-nightly)",
        "3.15.1 (keraz)",
    }
    (tmp_path / "unpacked.py").touch()
    assert installed._version_of("unpacked") == "installed, version unknown"
    assert installed._version_of("no_such_module") == "not installed"


def test_misspelt_and_impossible_settings(monkeypatch):
    findings = findings_of(doctor._settings, monkeypatch, TFRING_LOG_LEVLE="1")
    assert "TFRING_LOG_LEVEL" in findings.problems[0]
    findings = findings_of(doctor._settings, monkeypatch, TFRING_X_MESH_LIMIT="0")
    assert 'TFRING_X_MESH_LIMIT is "0"' in findings.problems[0]


def test_a_pod_of_several_ranks_is_told_from_a_mistake(monkeypatch):
    pod = {"TFRING_PODS": "3", "TFRING_POD_SLOTS": "2", "TFRING_RENDEZVOUS_ADDR": "a-0.a"}
    findings = findings_of(doctor._environment, monkeypatch, JOB_COMPLETION_INDEX="1", **pod)
    assert not findings.problems
    assert dict(findings.lines)["ranks"].startswith("2 to 3 of 6 in this pod")
    findings = findings_of(doctor._environment, monkeypatch, JOB_COMPLETION_INDEX="3")
    assert "JOB_COMPLETION_INDEX is 3" in findings.problems[0]


def test_only_settings_that_are_not_at_their_defaults_are_shown(monkeypatch):
    findings = findings_of(doctor._settings, monkeypatch)
    assert findings.lines == [("settings", "all have their defaults: tfring help configuration")]
    found = findings_of(
        doctor._settings, monkeypatch, TFRING_CACHE_CAPACITY="7", TFRING_X_MAX_PLANS_IN_FLIGHT="2"
    )
    assert found.lines == [("TFRING_CACHE_CAPACITY", "7 (default 1024)")]


def test_json_has_what_is_wrong_and_all_facts(monkeypatch, capsys):
    for check in ("python", "binding", "tensorflow", "mpi", "gpus", "cpu"):
        monkeypatch.setattr(installed, check, lambda findings: findings.show("a", "b"))
    monkeypatch.setenv("TFRING_X_MESH_LIMIT", "0")
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["facts"]["a"] == ["b"] * 6
    (problem,) = told["wrong"]
    assert problem.startswith('TFRING_X_MESH_LIMIT is "0"')


def test_run_takes_the_hosts_and_what_ssh_needs(monkeypatch):
    tried = []
    monkeypatch.setattr(doctor, "_trial", lambda findings, where: tried.append(where))
    for check in ("python", "binding", "tensorflow", "mpi", "gpus", "cpu"):
        monkeypatch.setattr(installed, check, lambda findings: None)
    assert main(["doctor", "--run"]) == 0
    assert main(["doctor", "--run", "-H", "a:1,[fd00::1]:2", "-p", "2222", "-i", "key"]) == 0
    assert main(["doctor", "-H", "a:1,b:1"]) == 0
    assert tried == [["-np", "2"], ["-H", "a:1,[fd00::1]:2", "-p", "2222", "-i", "key"]]


def trial(monkeypatch, *where):
    return findings_of(functools.partial(doctor._trial, where=where), monkeypatch)


def test_run_shows_what_the_trial_says(monkeypatch):
    """That the demo trains and says it so is in test_demo.py."""
    said = "2 ranks trained a model.\nloss 1. The weights of the ranks are equal.\n"
    done = subprocess.CompletedProcess((), 0, said, "")
    monkeypatch.setattr(doctor.subprocess, "run", lambda command, **_: done)
    findings = trial(monkeypatch, "-np", "2")
    assert findings.problems == []
    assert [text for _, text in findings.lines] == [
        "2 ranks trained a model.",
        "The weights of the ranks are equal.",
    ]


def test_run_says_which_host_cannot_be_used(monkeypatch):
    (problem,) = trial(monkeypatch, "-H", "localhost:1,no-such-host.invalid:1").problems
    first, *rest = problem.splitlines()
    assert first.startswith("exit code ") and "-H localhost:1,no-such-host.invalid:1" in first
    assert [line for line in rest if "no-such-host.invalid" in line], problem


def test_secret_is_not_printed(monkeypatch):
    findings = findings_of(doctor._settings, monkeypatch, TFRING_SECRET="hush" * 8)
    assert ("TFRING_SECRET", "(set)") in findings.lines
    assert "hush" not in json.dumps(findings.lines)


def prices_of(monkeypatch, *hosts, **variables):
    pytest.importorskip("tfring.runtime._native")
    check = functools.partial(doctor._prices, hosts=hosts)
    return [value for _, value in findings_of(check, monkeypatch, **variables).lines]


def test_prices_of_allreduces_between_hosts(monkeypatch):
    head, *lines = prices_of(
        monkeypatch, ("a", 4), ("b", 4), TFRING_X_NETWORK_LATENCY_SECONDS="0.001"
    )
    assert "2 hosts with 4 ranks each: between hosts 1 ms and 1250 MB/s" in head
    assert [line.split(":")[0] for line in lines] == ["4 B", "64 KiB", "1 MiB", "16 MiB", "64 MiB"]
    assert lines[0].startswith("4 B: hierarchical_exchange through one rank of each host 1")
    assert "; not " in lines[0] and ", direct_allreduce 1.1 ms" in lines[0]
    # 64 MiB at 1.25 GB/s; the ring sends 7/4 of it.
    assert lines[-1].startswith("64 MiB: hierarchical_exchange ")
    assert "ring_allreduce 1" in lines[-1]


def test_prices_of_the_job_that_this_process_belongs_to(monkeypatch):
    for name, value in {
        "TFRING_X_RANK": 0,
        "TFRING_X_SIZE": 8,
        "TFRING_X_LOCAL_RANK": 0,
        "TFRING_X_LOCAL_SIZE": 2,
        "TFRING_RENDEZVOUS_ADDR": "h",
        "TFRING_RENDEZVOUS_PORT": 29500,
    }.items():
        monkeypatch.setenv(name, str(value))
    assert "4 hosts with 2 ranks each" in prices_of(monkeypatch)[0]
    monkeypatch.setenv("TFRING_X_LOCAL_SIZE", "8")
    assert prices_of(monkeypatch) == []


def test_half_a_launcher(monkeypatch):
    for name in ("TFRING_X_RANK", "TFRING_X_SIZE", "RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    findings = findings_of(doctor._environment, monkeypatch, WORLD_SIZE="2")
    assert "RANK" in findings.problems[0] and "missing" in findings.problems[0]


@pytest.mark.parametrize("library,wrong", [("MPICH 4.1", True), ("Open MPI v5.0", False)])
def test_mpirun_of_another_mpi(tmp_path, library, wrong):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.1'\n")
    mpirun.chmod(0o755)
    findings = installed.Findings()
    installed._compare_mpirun(findings, str(mpirun), library)
    assert bool(findings.problems) == wrong


def test_probe_survives_a_crash():
    assert installed._probe("import os; os.abort()") == (None, "exit code -6")
    answer, trouble = installed._probe("raise ValueError('no')")
    assert answer is None and trouble == "ValueError: no"
    assert installed._probe("print('[1]')") == ([1], "")
