"""What is installed here and what the machine has, for ``tfring doctor``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfring.job.bootstrap.inter_op_threads import WANTED, inter_op_threads
from tfring.job.bootstrap.mpi_data import plugins_in
from tfring.runtime import _native
from tfring.runtime.settings.environment import read_settings
from tfring.runtime.settings.setting import SettingError
from tfring.version import __version__

_CPU_FLAGS = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "asimd", "sve")
_PROBE_SECONDS = 120
# Variables by which MPI would start as a rank.
_STARTS_MPI = ("OMPI_COMM", "PMI", "MPI_LOCAL", "PRTE")


@dataclass
class Findings:
    """What the checks found. Each problem says what to do about it."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def show(self, name: str, value: object) -> None:
        """Adds one line."""
        self.lines.append((name, str(value)))


def _version_of(module: str) -> str:
    """Returns the version of each package that a module comes from: they may be several."""
    if importlib.util.find_spec(module) is None:
        return "not installed"
    names = dict.fromkeys(importlib.metadata.packages_distributions().get(module, ()))
    found = [f"{importlib.metadata.version(name)} ({name})" for name in names]
    return ", ".join(found) or "installed, version unknown"


def python(findings: Findings) -> None:
    """Shows this tfring and this Python."""
    findings.show("tfring", f"{__version__} in {Path(__file__).parents[1]}")
    findings.show("Python", f"{platform.python_version()} ({sys.executable})")


def binding(findings: Findings) -> None:
    """Shows the compiled runtime and what it can do."""
    try:
        core = _native.core
    except (ImportError, OSError) as error:
        findings.show("runtime", "not found")
        findings.problems.append(f"the compiled runtime cannot be loaded: {error}")
        return
    built = core.build_info()
    features = " ".join(built["cpu_features"])
    findings.show(
        "runtime",
        f"{built['version']} in {_native.library_dir()}, {built['build_type']}, compiler "
        f"{built['compiler']}, with kernels for {features}; for GPUs: "
        f"{built['gpu_kernels'] or 'none'}",
    )
    plugins = ", ".join(plugins_in(_native.library_dir())) or "none"
    findings.show(
        "transports",
        "tcp between ranks, shared memory between ranks of one host; MPI on request "
        f"(plug-ins: {plugins})",
    )
    on_gpus = "GPUs (NCCL, or copies through CPU memory; experimental)"
    everywhere = f"CPU, and {on_gpus}" if built["gpu_kernels"] else "CPU, not on GPUs"
    findings.show("collectives on", everywhere)


def _probe(code: str) -> tuple[Any, str]:
    """Runs code in a new Python process, so that a crash does not end this one.

    Returns the JSON value that the code printed, or None and what went wrong.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_STARTS_MPI)}
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


def tensorflow(findings: Findings) -> None:
    """Shows TensorFlow and Keras, and loads tfring's ops in a process of their own."""
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
    if inter_op_threads() < WANTED and os.environ.get("TF_NUM_INTEROP_THREADS"):
        findings.problems.append(
            "TF_NUM_INTEROP_THREADS is 1, so collectives cannot overlap the backward pass: set it "
            f"to {WANTED} or more, or unset it"
        )


def mpi(findings: Findings) -> None:
    """Shows which MPI there is, and whether mpirun and mpi4py are of one."""
    mpirun = shutil.which("mpirun")
    if importlib.util.find_spec("mpi4py") is None:
        needs = f"{mpirun} needs mpi4py: pip install mpi4py" if mpirun else "none"
        findings.show("MPI", f"{needs} (tfring run does not need it)")
        return
    findings.show("mpirun", mpirun or "not found (tfring run does not need it)")
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


def gpus(findings: Findings) -> None:
    """Shows GPUs and what carries their tensors."""
    try:
        runtime = read_settings(os.environ).runtime
    except SettingError:
        runtime = {}  # another check says so
    answer, trouble = _probe(
        "import json\nfrom tfring.runtime.gpu.report import gpu_report\n"
        f"print(json.dumps(gpu_report({runtime!r})))"
    )
    if answer is None:
        findings.show("GPUs", "cannot be looked at")
        findings.problems.append(f"the CUDA driver or NCCL crashes or hangs: {trouble}")
        return
    for name, value in answer["lines"]:
        findings.show(name, value)
    findings.problems += answer["problems"]


def cpu(findings: Findings) -> None:
    """Shows the processors."""
    flags: set[str] = set()
    try:
        match = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
        flags = set(match.group(1).split()) if match else set()
    except OSError:
        pass
    shown = " ".join(f for f in _CPU_FLAGS if f in flags) or "unknown"
    usable = len(os.sched_getaffinity(0))
    cores = f"{usable} of {os.cpu_count()} cores usable"
    findings.show("CPU", f"{platform.machine()}, {cores}, {shown}")
