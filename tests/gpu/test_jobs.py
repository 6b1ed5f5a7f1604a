"""tests/parallel/gpu under mpirun on the fakes of the CUDA driver and NCCL.

Each rank has a GPU of its own. With GPU_OPERATIONS=nccl a collective that NCCL can run copies
nothing between GPU and host, and the fake driver counts it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import gpu_fake
import pytest

# Every rank's GPU has another UUID, as on a machine where each rank has its own.
OWN_GPU = 'export FAKE_CUDA_UUID=$((OMPI_COMM_WORLD_RANK + 1)); exec "$@"'
PROGRAMS = Path(__file__).parent / "programs"
NCCL = "libnccl.so.2"
TIMEOUT = 600


def job_environment(operations: str, **settings: int) -> dict[str, str]:
    """What the ranks of a job on the fakes need; `settings` are those of the driver's."""
    env = gpu_fake.environment(**settings)
    library = gpu_fake.fakes() / NCCL
    if not Path(library).is_file():
        pytest.skip(f"no {library}: run `make gpu-build`")
    # tests/parallel hides GPUs unless something is set.
    env.update(CUDA_VISIBLE_DEVICES="0,1", TFRING_NCCL_LIBRARY=str(library))
    env.update(TFRING_GPU_OPERATIONS=operations)
    return env


def run_job(
    ranks: int, *arguments: str, operations: str, own_gpu: bool = True, **settings: int
) -> None:
    """Runs pytest on files of tests/parallel/gpu as one job of several ranks."""
    env = job_environment(operations, **settings)
    launch = [str(gpu_fake.ROOT / "tools" / "mpi_run.sh"), str(ranks)]
    launch += ["bash", "-c", OWN_GPU, "_"] if own_gpu else []
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no"]
    result = subprocess.run(
        [*launch, *test, *arguments],
        cwd=gpu_fake.ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    assert "TensorFlow sees no GPU" not in result.stdout, result.stdout[-2000:]


@pytest.mark.parametrize(("ranks", "operations"), [(1, "host"), (2, "nccl"), (3, "host")])
def test_the_whole_matrix(ranks: int, operations: str) -> None:
    """Of three ranks also the process sets; on streams that run late in random order."""
    chosen = "" if ranks > 2 else "not halves"  # each half of two ranks has one rank
    matrix = "tests/parallel/gpu/test_gpu_matrix.py"
    run_job(ranks, matrix, "-k", chosen, operations=operations, seed=5, delay_us=200)


@pytest.mark.parametrize("operations", ["host", "nccl"])
def test_placement_errors_and_training(operations: str) -> None:
    files = [f"tests/parallel/gpu/test_gpu_{what}.py" for what in ("placement", "training", "xla")]
    run_job(2, *files, operations=operations)


def test_compiled_functions_can_read_the_variables_of_every_option() -> None:
    """Of one rank: on others the conditions of steps, which nothing computes, might differ."""
    run_job(1, "tests/parallel/training/test_variables.py", operations="host")


def test_deterministic_sums_use_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFRING_DETERMINISTIC", "1")
    test = "tests/parallel/gpu/test_gpu_training.py"
    run_job(3, test, "-k", "deterministic or counted", operations="nccl")


@pytest.mark.parametrize("own_gpu", [True, False])
def test_ranks_with_two_gpus_and_ranks_that_share_one(own_gpu: bool) -> None:
    test = "tests/parallel/gpu/test_gpu_users.py"
    run_job(2, test, operations="auto", own_gpu=own_gpu, devices=2 if own_gpu else 1)


@pytest.mark.parametrize("hangs", [False, True])
def test_all_survivors_name_the_rank_that_was_killed(tmp_path: Path, hangs: bool) -> None:
    """While they wait for it in a kernel of NCCL, and in one call after the other.

    Also where NCCL hangs in its abort: its fake would abort the process if static destructors ran
    beside that.
    """
    env = job_environment("nccl")
    env["TFRING_FAKE_NCCL"] = f"hang_abort={hangs:d}"
    own_gpu = OWN_GPU.replace("OMPI_COMM_WORLD_RANK", "TFRING_X_RANK").replace("exec ", "")
    # tfring run gives them less time than the abort takes.
    own_gpu = f"trap '' TERM; {own_gpu}"
    own_gpu += '; code=$?; echo $code > "${@: -1}/code$TFRING_X_RANK"; exit $code'
    command = [sys.executable, "-m", "tfring", "run", "-np", "3", "bash", "-c", own_gpu, "_"]
    command += [sys.executable, str(PROGRAMS / "lost_rank.py"), str(tmp_path)]
    result = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    ends = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("rank*")}
    assert sorted(ends) == ["rank0", "rank2"], result.stdout + result.stderr
    codes = {path.name: path.read_text().strip() for path in tmp_path.glob("code*")}
    assert codes == {"code0": "3", "code1": "137", "code2": "3"}, result.stdout + result.stderr
    assert all(f"rank {rank} ends" in result.stdout for rank in (0, 2)), result.stdout
    for kind, message, seconds, next_kind in ends.values():
        assert (kind, next_kind) == ("UnavailableError",) * 2, message
        assert "rank 1 (" in message and "was lost" in message
        assert seconds < 5
