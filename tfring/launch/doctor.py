"""``tfring doctor``: says what is wrong, what is installed, and how it is set."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfring.job.environments import IdentityError, find_identity
from tfring.job.environments.kubernetes import Pod, find_pod
from tfring.launch import installed
from tfring.launch.hosts.placement import parse_hosts
from tfring.launch.installed import Findings
from tfring.observe.json_output import add_json_option, print_json
from tfring.runtime import _native
from tfring.runtime.settings.environment import native_values, read_settings, values_of
from tfring.runtime.settings.setting import SettingError
from tfring.runtime.settings.table import SETTINGS

_TRIAL_SECONDS = 600
_START_SECONDS = "60"
_LAST_LINES = 20  # of a trial that fails
TRAINED = re.compile(r"(\d+ ranks? trained .*)\n.*?(The weights .*)")  # what tfring.demo prints


@dataclass(frozen=True)
class Answer:
    """What is wrong with this installation.

    Attributes:
        wrong: Problems, each with what to do; []: nothing is wrong.
        facts: What is installed and how it is set: values by name.
    """

    wrong: list[str]
    facts: dict[str, list[str]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = (
        "Says what is wrong with this installation, what is installed, and which settings are not "
        "at their defaults. The exit code is 1 if something is wrong."
    )
    parser.epilog = "tfring doctor\ntfring doctor --run\ntfring doctor --run -H node1:1,node2:1"
    add = parser.add_argument
    add("--run", action="store_true", help="also train on two ranks: python -m tfring.demo")
    add(
        "-H",
        dest="hosts",
        default="",
        metavar="HOST:SLOTS,...",
        help="with --run: train on these hosts, which tests their names, ssh and ports. Without "
        "it: what allreduces between them are expected to take; none is asked",
    )
    add("-p", "--ssh-port", metavar="PORT", help="port of ssh on the other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    add_json_option(parser, Answer)


def run(options: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if there is a problem. UsageError: -H has another form."""
    hosts = parse_hosts(options.hosts) if options.hosts else ()
    where = ["-H", options.hosts] if hosts else ["-np", "2"]
    where += ["-p", options.ssh_port] if options.ssh_port else []
    where += ["-i", options.ssh_identity_file] if options.ssh_identity_file else []
    return main(hosts, where if options.run else (), as_json=options.json)


def main(
    hosts: Sequence[tuple[str, int]] = (), trial: Sequence[str] = (), *, as_json: bool = False
) -> int:
    """Prints the findings, as JSON on request; returns 1 if there is a problem, else 0."""
    findings = look(hosts, trial)
    if as_json:
        print_json(_of(findings))
    else:
        _print(findings)
    return 1 if findings.problems else 0


def answer() -> Answer:
    """Returns what is wrong with this installation; trains on no rank."""
    return _of(look())


def _of(findings: Findings) -> Answer:
    facts: dict[str, list[str]] = {}
    for name, value in findings.lines:
        facts.setdefault(name, []).append(value)
    return Answer(findings.problems, facts)


def look(hosts: Sequence[tuple[str, int]] = (), trial: Sequence[str] = ()) -> Findings:
    """Returns what all checks find.

    It shows what allreduces between the hosts cost, each with its number of ranks; without any
    between those of the job that this process belongs to. `trial` has options of `tfring run` that
    say where to train; (): nowhere.
    """
    checks: dict[str, Callable[[Findings], None]] = {
        "Python": installed.python,
        "the runtime": installed.binding,
        "TensorFlow": installed.tensorflow,
        "MPI": installed.mpi,
        "GPUs": installed.gpus,
        "processors": installed.cpu,
        "the environment": _environment,
        "settings": _settings,
        "hosts": functools.partial(_prices, hosts=hosts),
    }
    if trial:
        checks["a job"] = functools.partial(_trial, where=trial)
    findings = Findings()
    for about, check in checks.items():
        _progress(f"looking at {about} ...")
        check(findings)
    _progress("")
    return findings


def _print(findings: Findings) -> None:
    for problem in findings.problems:
        print(f"WRONG: {problem}")
    if not findings.problems:
        print("Nothing is wrong.")
    print()
    for name, value in findings.lines:
        print(f"{name + ':':<21} {value}")


def _progress(text: str) -> None:
    """Shows on a terminal what is being done, in a line that goes away."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _trial(findings: Findings, where: Sequence[str]) -> None:
    """Trains on real ranks."""
    program = [sys.executable, "-m", "tfring.demo"]
    words = ["run", *where, "--start-timeout", _START_SECONDS, *program]
    shown = shlex.join(["tfring", *words])
    command = [sys.executable, "-m", "tfring", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TRIAL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        findings.problems.append(f"no end within {_TRIAL_SECONDS} s: {shown}")
        return
    told = TRAINED.search(done.stdout)
    if done.returncode == 0 and told is not None:
        findings.show("trained", told[1])
        findings.show("trained", told[2])
        return
    last = "\n".join(f"    {line}" for line in done.stderr.splitlines()[-_LAST_LINES:])
    findings.problems.append(f"exit code {done.returncode} of: {shown}\n{last}")


def _environment(findings: Findings) -> None:
    try:
        identity = find_identity(os.environ)
    except IdentityError as error:
        if (pod := _pod_of_several_ranks()) is not None:
            first = pod.number * pod.slots
            shown = f"{first} to {first + pod.slots - 1} of {pod.size} in this pod"
            findings.show("started by", pod.source)
            findings.show("ranks", f"{shown}, which tfring run starts")
            return
        findings.show("started by", "unclear")
        findings.problems.append(str(error))
        return
    findings.show("started by", identity.source)
    findings.show("rank", f"{identity.rank} of {identity.size}")


def _pod_of_several_ranks() -> Pod | None:
    """Returns the pod of a process that is no rank of it, as those that kubectl exec starts."""
    with contextlib.suppress(IdentityError):
        pod = find_pod(os.environ)
        return pod if pod is not None and pod.slots > 1 else None
    return None


def _settings(findings: Findings) -> None:
    try:
        settings = read_settings(os.environ)
    except SettingError as error:
        findings.problems.append(str(error))
        return
    findings.problems += (*settings.unknown, *settings.without_effect)
    others = 0
    for name, value in values_of(os.environ).items():
        setting = SETTINGS[name]
        if value != setting.default:
            shown = "(set)" if name == "SECRET" else setting.text_of(value)
            default = f" (default {setting.shown_default})" if setting.shown_default else ""
            findings.show(setting.variable, f"{shown}{default}")
            others += 1
    if not others:
        findings.show("settings", "all have their defaults: tfring help configuration")


def _prices(findings: Findings, hosts: Sequence[tuple[str, int]]) -> None:
    """Shows which allreduce is chosen between hosts, and what it is expected to take."""
    by_rank = [host for host, slots in hosts for _ in range(slots)] or _hosts_of_this_job()
    try:
        settings = read_settings(os.environ)
        core = _native.core
    except (SettingError, ImportError, OSError):
        return  # another check says so
    for line in core.allreduce_prices(by_rank, native_values(settings.runtime)):
        findings.show("allreduces", line)


def _hosts_of_this_job() -> list[str]:
    """Returns a host for each rank, as if all had as many ranks as this one; empty: one host."""
    try:
        identity = find_identity(os.environ)
    except IdentityError:
        return []  # another check says so
    if identity.size is None or not identity.local_size or identity.local_size >= identity.size:
        return []
    return [str(rank // identity.local_size) for rank in range(identity.size)]
