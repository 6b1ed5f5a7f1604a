"""The same Keras models on tfring and on what users would pick instead, side by side.

    make compare                                        # all of it: hours
    python -m benchmarks.frameworks --quick             # one round, few steps, no faults
    python -m benchmarks.frameworks --peers tfring,torch-ddp --ranks 2 --rounds 3 --json out.json
    python -m benchmarks.frameworks --page out.json ... # docs/comparison.md and its charts

In each round every framework has its turn, in an order of its own. Each rank trains each model
twice: alone, while all ranks compute without communication, then together. The overhead is the
ratio of their steps. torch, JAX and Keras' nightly build are installed into build-compare.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.frameworks import environments, faults, jobs, results
from benchmarks.frameworks.models import MODELS
from tfring.bench.result import machine

# Epochs of 32 steps; the first one compiles and is not timed.
EPOCHS = {"mlp": 7, "cnn": 4, "transformer": 3}
_LIMIT = 600.0
_SEED = 7


class Comparison:
    """Runs jobs and keeps their results in a file.

    Args:
        options: of the command.
        network: the network namespace of the jobs, or None.
    """

    def __init__(self, options: argparse.Namespace, network: str | None) -> None:
        self._options, self._network = options, network
        self._python: Path | None = None
        self._random = random.Random(_SEED)
        self.result: dict[str, Any] = {
            "machine": {**machine(), "load": os.getloadavg()[0]},
            "network": network is not None,
            "epochs": options.epochs,
            "versions": {},
            "skipped": {},
            "checks": [],
            "runs": [],
            "faults": [],
        }
        self._peers = [peer for peer in jobs.PEERS if self._is_there(peer)]

    def run(self) -> None:
        """Checks that all compute the same, then measures, then makes faults."""
        ranks = self._options.ranks
        reference: Path | None = None
        with tempfile.TemporaryDirectory() as kept:
            for peer in self._peers if self._options.checks else []:
                reference = self._check(peer, Path(kept), reference)
        for number in range(self._options.rounds):
            turns = [(peer, count) for count in ranks for peer in self._peers]
            for peer, count in self._random.sample(turns, len(turns)):
                self._measure(peer, count, number)
        for kind in self._options.faults:
            for peer in self._peers:
                with self._place() as place:
                    self._note("faults", faults.fault(peer, place, ranks[0], kind))

    def _is_there(self, peer: jobs.Peer) -> bool:
        """Returns whether a framework can run here; else notes why it cannot."""
        if peer.name not in self._options.peers:
            return False
        try:
            if not peer.own and self._python is None:
                self._python = environments.python_of_peers(self._options.install)
        except (environments.Missing, OSError) as error:
            return self._skip(peer, str(error))
        with self._place() as place:
            ended = jobs.run(peer, place, 0, ["--models", "mlp=1", "--reference"], _LIMIT)
            found = results.read_ranks(place.folder, 1)
        if found is None:
            return self._skip(peer, ended.lines[-1][1] if ended.lines else "it said nothing")
        self.result["versions"][peer.name] = found[0]["versions"]
        return True

    def _skip(self, peer: jobs.Peer, why: str) -> bool:
        print(f"{peer.name} is skipped: {why}", flush=True)
        self.result["skipped"][peer.name] = why
        return False

    def _check(self, peer: jobs.Peer, kept: Path, reference: Path | None) -> Path:
        """Compares weights after an epoch with those of one process, and of the first peer."""
        words = ["--models", ",".join(f"{kind}=1" for kind in self._options.epochs), "--save"]
        one = kept / peer.name
        one.mkdir()
        jobs.run(peer, jobs.Place(None, self._python, one), 0, [*words, "--reference"], _LIMIT)
        for count in self._options.ranks:
            with self._place() as place:
                ended = jobs.run(peer, place, count, words, _LIMIT)
                found = results.read_ranks(place.folder, count)
                row: dict[str, Any] = {"peer": peer.name, "ranks": count}
                if found is None:
                    row["error"] = ended.lines[-1][1] if ended.lines else "it said nothing"
                for kind in self._options.epochs if found else []:
                    row[kind] = results.weights_off(place.folder, one, kind)
                    row[f"{kind}_of_first"] = results.weights_off(one, reference or one, kind)
                self._note("checks", row)
        return reference or one

    def _measure(self, peer: jobs.Peer, count: int, number: int) -> None:
        words = ["--models", ",".join(f"{kind}={n}" for kind, n in self._options.epochs.items())]
        with self._place() as place:
            ended = jobs.run(peer, place, count, words, _LIMIT)
            found = results.read_ranks(place.folder, count)
        row: dict[str, Any] = {"peer": peer.name, "ranks": count, "round": number}
        if found is None:
            row["error"] = "\n".join(line for _, line in ended.lines[-5:])
        else:
            row.update(results.of_job(found))
        self._note("runs", row)

    def _note(self, section: str, row: dict[str, Any]) -> None:
        self.result[section].append(row)
        print(section, json.dumps({k: v for k, v in row.items() if k != "lines"}), flush=True)
        if self._options.json:
            text = json.dumps(self.result, indent=1)
            Path(self._options.json).write_text(f"{text}\n", encoding="utf-8")

    @contextmanager
    def _place(self) -> Iterator[jobs.Place]:
        with tempfile.TemporaryDirectory() as folder:
            yield jobs.Place(self._network, self._python, Path(folder))


def arguments() -> argparse.Namespace:
    """Returns the options of the command."""
    names = ",".join(peer.name for peer in jobs.PEERS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=names, help=f"of {names}")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--faults", default=",".join(faults.LIMITS), help='"" for none')
    parser.add_argument("--quick", action="store_true", help="2 ranks, 1 round, no faults")
    parser.add_argument("--no-checks", dest="checks", action="store_false")
    parser.add_argument("--no-install", dest="install", action="store_false")
    parser.add_argument("--json", help="write the result to this file, after each job")
    parser.add_argument("--page", metavar="JSON", nargs="+", help="only write the docs, of results")
    options = parser.parse_args()
    options.peers = options.peers.split(",")
    options.epochs = {kind: EPOCHS[kind] for kind in options.models.split(",")}
    options.ranks = [int(count) for count in options.ranks.split(",")]
    options.faults = [kind for kind in options.faults.split(",") if kind]
    if options.quick:
        options.epochs = dict.fromkeys(options.epochs, 2)
        options.ranks, options.rounds, options.faults = options.ranks[:1], 1, []
    return options


def main() -> int:
    options = arguments()
    if options.page:
        from benchmarks.frameworks import page

        page.write([json.loads(Path(path).read_text("utf-8")) for path in options.page])
        return 0
    with environments.network() as network:
        comparison = Comparison(options, network)
        comparison.run()
    failed = [row for name in ("checks", "runs", "faults") for row in comparison.result[name]]
    return 1 if any("error" in row for row in failed) else 0


if __name__ == "__main__":
    sys.exit(main())
