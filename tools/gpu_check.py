"""Runs the steps of tfring_gpu_check, each in a process of its own with its own time limit.

A line of JSON per step goes to standard output and to the file that is named. A step that fails, or
that had to be killed, is a line, too, and the others go on. With GPU_CHECK_DOUBLE=1 (or --double):
on the doubles of the driver and of NCCL, which shows that the steps work, and nothing about a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# Seconds, in the order in which they are run: what others need comes first.
STEPS = {
    "facts": 20,
    "load_nccl": 40,
    "pack_bits": 60,
    "pack_speed": 60,
    "latency": 30,
    "one_rank": 100,
    "threads": 120,
    "processes": 120,
    "hang": 60,
    "death": 60,
}


def run_step(command: list[str], step: str, limit: float, env: dict[str, str]) -> dict[str, object]:
    """The line of a step, with an "error" if it printed none."""
    start = time.monotonic()
    # A session of its own: a step's processes end with it.
    process = subprocess.Popen(
        [*command, step],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
        trouble = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        trouble = f"killed after {limit:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if lines:
        line: dict[str, object] = json.loads(lines[-1])
    else:
        line = {"step": step, "ok": False, "error": trouble}
        line["seconds"] = time.monotonic() - start
    if not line["ok"] and err:
        line["stderr"] = err[-2000:]
    return line


def environment(double: bool, gpus: int) -> dict[str, str]:
    env = dict(os.environ)
    if double:
        env["FAKE_CUDA_DEVICES"] = "2"
    elif gpus == 1:  # NCCL 2.30 and later takes two ranks on one GPU only when it is told to
        env |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NVLS_ENABLE": "0"}
    return env


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build"), help="CMake's folder")
    parser.add_argument("--output", type=Path, help="a file to append the lines to")
    parser.add_argument("--double", action="store_true", help="run on the doubles")
    parser.add_argument("--driver", default="libcuda.so.1", help="the CUDA driver")
    parser.add_argument("--nccl", default="", help="libnccl.so.2; default: as the runtime finds it")
    parser.add_argument("steps", nargs="*", help=f"of {', '.join(STEPS)}; default: all")
    options = parser.parse_args()
    double = options.double or os.environ.get("GPU_CHECK_DOUBLE") == "1"
    command = [str(options.build / "tools/gpu_check/tfring_gpu_check")]
    if double:
        doubles = options.build.resolve() / "doubles"
        command += [f"--driver={doubles}/libcuda.so.1", f"--nccl={doubles}/libnccl.so.2"]
        command.append("--doubles")
    else:
        command += [f"--driver={options.driver}", f"--nccl={options.nccl}"]
    gpus, failed = 0, 0
    on = "double" if double else "GPU"
    for step in options.steps or STEPS:
        line = {"on": on, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        line |= run_step(command, step, STEPS[step], environment(double, gpus))
        if step == "facts":
            gpus = int(str(line.get("gpus", 0)))
        failed += not line["ok"]
        print(json.dumps(line), flush=True)
        if options.output:
            with options.output.open("a", encoding="utf-8") as file:
                print(json.dumps(line), file=file)
    print(f"{failed} steps failed, on the {on}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
