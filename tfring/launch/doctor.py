"""``tfring doctor``: shows what is installed, how it is set, and what is wrong."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfring import _native
from tfring.job.bootstrap.inter_op_threads import WANTED, inter_op_threads
from tfring.job.bootstrap.mpi_data import plugins_in
from tfring.job.environments import IdentityError, find_identity
from tfring.job.environments.kubernetes import Pod, find_pod
from tfring.launch.hosts.placement import parse_hosts
from tfring.settings.environment import native_values, read_settings, values_of
from tfring.settings.setting import Reader, SettingError
from tfring.settings.table import SETTINGS
from tfring.version import __version__

_CPU_FLAGS = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "asimd", "sve")
_PROBE_SECONDS = 120


@dataclass
class Findings:
    """What the checks found. Each problem says what to do about it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def show(self, name: str, value: object) -> None:
        """Adds one line."""
        self.lines.append((name, str(value)))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.description = "Says what is wrong with this installation, and how it is set."
    parser.epilog = "tfring doctor\ntfring doctor -H node1:4,node2:4"
    parser.add_argument(
        "-H",
        dest="hosts",
        default="",
        metavar="HOST:SLOTS,...",
        help="also what allreduces between these hosts are expected to take; none is asked",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the findings; returns 1 if there is a problem. UsageError: -H has another form."""
    return main(parse_hosts(options.hosts) if options.hosts else ())


def main(hosts: Sequence[tuple[str, int]] = ()) -> int:
    """Prints the findings; returns 1 if there is a problem, else 0.

    It shows what allreduces between these hosts cost, each with its number of ranks; without any
    between those of the job that this process belongs to.
    """
    findings = Findings()
    checks: list[Callable[[Findings], None]] = [
        _python,
        _binding,
        _tensorflow,
        _mpi,
        _gpus,
        _cpu,
        _environment,
        _settings,
        functools.partial(_prices, hosts=hosts),
    ]
    for check in checks:
        check(findings)
    for name, value in findings.lines:
        print(f"{name + ':':<21} {value}")
    print()
    if not findings.problems:
        print("Nothing is wrong.")
        return 0
    for problem in findings.problems:
        print(f"WRONG: {problem}")
    return 1


def _version_of(module: str) -> str:
    """Returns the version of each package that a module comes from: they may be several."""
    if importlib.util.find_spec(module) is None:
        return "not installed"
    names = dict.fromkeys(importlib.metadata.packages_distributions().get(module, ()))
    found = [f"{importlib.metadata.version(name)} ({name})" for name in names]
    return ", ".join(found) or "installed, version unknown"


def _python(findings: Findings) -> None:
    findings.show("tfring", f"{__version__} in {Path(__file__).parents[1]}")
    findings.show("Python", f"{platform.python_version()} ({sys.executable})")


def _binding(findings: Findings) -> None:
    try:
        core = _native.core
    except (ImportError, OSError) as error:
        findings.show("runtime", "not found")
        findings.problems.append(f"the compiled runtime cannot be loaded: {error}")
        return
    findings.show("libraries", _native.library_dir())
    built = core.build_info()
    for name, value in sorted(built.items()):
        findings.show(f"built: {name}", value or "none")
    plugins = ", ".join(plugins_in(_native.library_dir())) or "none"
    findings.show(
        "transports",
        "tcp between ranks, shared memory between ranks of one host; MPI on request "
        f"(plug-ins: {plugins})",
    )
    on_gpus = "GPUs (NCCL, or copies through the host; experimental)"
    everywhere = f"CPU, and {on_gpus}" if built["gpu_kernels"] else "CPU, not on GPUs"
    findings.show("collectives on", everywhere)


def _probe(code: str) -> tuple[Any, str]:
    """Runs code in a new Python process, so that a crash does not end this one.

    Returns the JSON value that the code printed, or None and what went wrong.
    """
    environment = {k: v for k, v in os.environ.items() if not _starts_mpi(k)}
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    try:
        run = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {_PROBE_SECONDS} s; is this machine busy?"
    if run.returncode != 0:
        lines = run.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"exit code {run.returncode}"
    return json.loads(run.stdout.strip().splitlines()[-1]), ""


def _starts_mpi(name: str) -> bool:
    return name.startswith(("OMPI_COMM", "PMI", "MPI_LOCAL", "PRTE"))


def _tensorflow(findings: Findings) -> None:
    findings.show("TensorFlow", _version_of("tensorflow"))
    if importlib.util.find_spec("tensorflow") is None:
        wanted = (_native.minors_served() or ["2.21"])[-1]
        findings.problems.append(
            f"TensorFlow is not installed: pip install 'tensorflow=={wanted}.*'"
        )
        return
    findings.show("Keras", _version_of("keras"))
    answer, trouble = _probe(
        "import json, tfring.ops.library as t\n"
        "print(json.dumps([t.built_for(t.folder()), t.xla_trouble()]))"
    )
    if answer is None:
        findings.show("TensorFlow ops", "cannot be loaded")
        findings.problems.append(f"tfring's TensorFlow ops cannot be loaded: {trouble}")
    else:
        built, trouble = answer
        served = ", ".join(_native.minors_served())
        among = f" (there are ops for {served})" if served else ""
        findings.show("TensorFlow ops", f"load; built for TensorFlow {built}{among}")
        findings.show("jit_compile=True", f"not possible: {trouble}" if trouble else "possible")
    threads = inter_op_threads()
    findings.show("inter-op threads", threads)
    if threads < WANTED and os.environ.get("TF_NUM_INTEROP_THREADS"):
        findings.problems.append(
            "TF_NUM_INTEROP_THREADS is 1, so collectives cannot overlap the backward pass: set it "
            f"to {WANTED} or more, or unset it"
        )


def _mpi(findings: Findings) -> None:
    mpirun = shutil.which("mpirun")
    findings.show("mpirun", mpirun or "not found (tfring run does not need it)")
    if importlib.util.find_spec("mpi4py") is None:
        findings.show("mpi4py", "not installed (tfring run does not need it)")
        if mpirun:
            findings.show("under mpirun", "needs mpi4py: pip install mpi4py")
        return
    findings.show("mpi4py", _version_of("mpi4py"))
    answer, trouble = _probe(
        "import json\nimport mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\n"
        "print(json.dumps(MPI.Get_library_version().splitlines()[0].rstrip(chr(0))))"
    )
    if answer is None:
        findings.show("MPI library", "cannot be loaded")
        if mpirun:
            findings.problems.append(
                f"mpirun is there, but mpi4py cannot load an MPI library ({trouble}): install "
                "mpi4py for that MPI, or use tfring run"
            )
        return
    findings.show("MPI library", answer)
    _compare_mpirun(findings, mpirun, str(answer))


def _compare_mpirun(findings: Findings, mpirun: str | None, library: str) -> None:
    if mpirun is None:
        return
    try:
        run = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    launcher = run.stdout
    theirs = "Open MPI" if "Open MPI" in launcher else "MPICH" if "HYDRA" in launcher else None
    ours = "Open MPI" if "Open MPI" in library else "MPICH"
    if theirs is not None and theirs != ours:
        findings.problems.append(
            f"{mpirun} belongs to {theirs}, but mpi4py loads {library}: every rank would be "
            "a job of its own. Put the matching mpirun first in PATH, or reinstall mpi4py for it"
        )


def _gpus(findings: Findings) -> None:
    try:
        runtime = read_settings(os.environ).runtime
    except SettingError:
        runtime = {}  # another check says so
    answer, trouble = _probe(
        "import json\nfrom tfring.gpu.report import gpu_report\n"
        f"print(json.dumps(gpu_report({runtime!r})))"
    )
    if answer is None:
        findings.show("GPUs", "cannot be looked at")
        findings.problems.append(f"the CUDA driver or NCCL crashes or hangs: {trouble}")
        return
    for name, value in answer["lines"]:
        findings.show(name, value)
    findings.problems += answer["problems"]


def _cpu(findings: Findings) -> None:
    flags: set[str] = set()
    try:
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        flags = set(match.group(1).split()) if match else set()
    except OSError:
        pass
    shown = " ".join(f for f in _CPU_FLAGS if f in flags) or "unknown"
    usable = len(os.sched_getaffinity(0))
    findings.show("CPU", f"{platform.machine()}, {usable} of {os.cpu_count()} cores usable")
    findings.show("CPU features", shown)


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
    for name, value in values_of(os.environ).items():
        shown = "" if name == "SECRET" else f"{SETTINGS[name].text_of(value)} "
        findings.show(f"TFRING_{name}", f"{shown}(set)")
    for setting in SETTINGS.values():
        if setting.reader is not Reader.OURS:
            default = f" (default {setting.shown_default})" if setting.shown_default else ""
            text = f"{setting.plain_meaning} {setting.allowed.capitalize()}."
            findings.show("setting", f"{setting.variable}{default}: {text}")


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
