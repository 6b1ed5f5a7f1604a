"""DeePMD-kit, unchanged: parallel training, and the next steps of its users."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environments import CheckError, Environment

HERE = Path(__file__).resolve().parent
MOST = 1e-12  # the tolerance between two ranks and one process, in double precision


class DeepmdChecks:
    """What is checked, in this order: later checks need the files of earlier ones."""

    def __init__(self, environment: Environment, few: bool) -> None:
        self._environment = environment
        self._work = environment.work
        self._few = few

    def all(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yields what is checked and a function that does it."""
        self._environment.python(HERE / "water.py", "make", self._work)
        for ranks in (2,) if self._few else (1, 2, 4):
            yield f"dp train, ranks: {ranks}", lambda ranks=ranks: self._train(ranks)
        if not self._few:
            yield "dp train --restart, ranks: 2", self._restart
            yield "dp freeze, plain, in a fresh process", self._freeze
        yield "dp train --init-model, ranks: 2, 1", self.compare

    def _train(self, ranks: int) -> str:
        shutil.rmtree(self._work / "trained", ignore_errors=True)
        return self._steps(ranks, "train", 20)

    def _restart(self) -> str:
        return self._steps(2, "further", 40, "--restart", "trained/model.ckpt")

    def _steps(self, ranks: int, name: str, steps: int, *options: str) -> str:
        """Trains on ranks; checks that the checkpoint is of the last step."""
        dp = ["dp", "--tf", "train", "--skip-neighbor-stat", *options, f"{name}.json"]
        text = self._environment.finish(["horovodrun", "-np", str(ranks), *dp])
        last, error, *_ = (self._work / f"{name}.out").read_text().splitlines()[-1].split()
        checkpoint = self._work / "trained" / f"model.ckpt-{steps}.index"
        if int(last) != steps or not checkpoint.exists():
            raise CheckError(f"{name} ends with step {last}, not {steps}\n{text[-2000:]}")
        return f"ok: step {last}, error {error}"

    def _freeze(self) -> str:
        self._environment.finish(["dp", "--tf", "freeze", "-c", "trained", "-o", "frozen.pb"])
        return f"ok: {(self._work / 'frozen.pb').stat().st_size} bytes"

    def compare(self) -> str:
        """Trains two ranks with a frame each, and one process with both; compares all variables."""
        begin = "dp --tf train --skip-neighbor-stat --init-model trained/model.ckpt"
        # As on a cluster where each rank has its own data.
        each = f"exec {begin} rank$TFRING_X_RANK.json"
        ranks = ["horovodrun", "-np", "2", "bash", "-c", each]
        with ThreadPoolExecutor() as both:
            list(both.map(self._environment.finish, [[*begin.split(), "union.json"], ranks]))
        moved, apart = self._difference("union", "trained"), self._difference("union", "ranks")
        if not apart <= MOST < 1e-3 < moved:
            raise CheckError(
                f"one process and two ranks differ by {apart:.1e}, at most {MOST:g} is right; "
                f"training changed {moved:.1e}"
            )
        return f"equal to one process: largest difference {apart:.0e}"

    def _difference(self, one: str, other: str) -> float:
        """Returns the largest difference of a variable in two checkpoints, relative to its size."""
        models = (f"{one}/model.ckpt", f"{other}/model.ckpt")
        text = self._environment.python(HERE / "water.py", "compare", self._work, *models)
        return float(text.split()[-1])
