"""The compiled binding in a process of its own."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from launcher_tools import run_python

from tfring import version
from tfring.runtime import _native
from tfring.runtime._native import core

INVALID_ARGUMENT, FAILED_PRECONDITION = 3, 9


def init(settings: dict[str, int | str] | None = None, **fields: int) -> None:
    """Begins a job of one rank."""
    options = core.InitOptions()
    options.hosts = ["here"]
    for name, value in fields.items():
        setattr(options, name, value)
    core.init(options, settings or {})


@pytest.fixture
def runtime() -> Iterator[None]:
    init()
    yield
    core.shutdown()


def test_before_init_every_call_says_so() -> None:
    assert not core.is_initialized()
    calls = [
        core.rank,
        core.cross_size,
        lambda: core.allreduce(np.ones(2), name="early", op=1),
        lambda: core.barrier(name="early"),
        lambda: core.send(np.ones(2), name="early", dest=1),
        lambda: core.alltoall(np.ones(2), name="early"),
        core.process_sets,
        core.join,
        lambda: core.add_process_set([0]),
    ]
    for call in calls:
        with pytest.raises(core.CoreError, match="init") as caught:
            call()
        assert caught.value.code == FAILED_PRECONDITION
    assert core.counters() == {}
    core.shutdown()


def test_init_and_shutdown_again_and_again() -> None:
    for _ in range(3):
        init({"CACHE_CAPACITY": 0})
        assert core.is_initialized() and core.size() == 1
        with pytest.raises(core.CoreError) as caught:
            init()
        assert caught.value.code == FAILED_PRECONDITION
        np.testing.assert_array_equal(core.allreduce(np.ones(2), name="again", op=1), 1)
        core.shutdown()
        assert not core.is_initialized()


def test_a_generation_is_abandoned_and_the_next_one_begins() -> None:
    number = core.generation_state().number
    for generation in range(number + 1, number + 4):
        last_set = core.last_process_set() + 5  # as another rank may say
        init(last_process_set=last_set)
        state = core.generation_state()
        assert (state.number, state.phase.name, state.error) == (generation, "up", "")
        assert (state.lost, state.departed) == ([], [])
        assert (state.failed_here, state.failed_elsewhere) == (0, 0)
        assert core.abandoned() <= generation - number - 1  # those before may have ended
        core.abandon("too late", generation - 1)
        np.testing.assert_array_equal(core.allreduce(np.ones(2), name="x", op=1), 1)
        core.abandon("for test")
        core.abandon("again")
        state = core.generation_state()
        assert (state.number, state.phase.name) == (generation, "down")
        assert state.error == "Aborted: for test"
        assert not core.is_initialized() and core.last_process_set() == last_set
        with pytest.raises(core.CoreError, match=f"generation {generation} is over") as caught:
            core.allreduce(np.ones(2), name="late", op=1)
        assert caught.value.code == FAILED_PRECONDITION
        assert "call init()" in caught.value.message and "for test" in caught.value.message
    core.shutdown()
    assert core.abandoned() == 0
    with pytest.raises(core.CoreError, match="numbers have to ascend"):
        init(generation=number + 1)


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(core.CoreError, match="TFRING_FUSION_THRESHOLD"):
        init({"FUSION_THRESHOLD": "many"})
    assert not core.is_initialized()


def test_results_belong_to_the_caller(runtime: None) -> None:
    source = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = core.allreduce(source, name="owned", op=1)
    result[:] = -1
    np.testing.assert_array_equal(source.ravel(), np.arange(6))
    handle = core.allreduce_async(source, name="owned", op=1)
    first, second = handle.wait(), handle.wait()
    assert first is second
    core.shutdown()
    np.testing.assert_array_equal(first, source)


def test_one_rank_has_no_second_process_set(runtime: None) -> None:
    assert core.process_sets() == {0: [0]}
    for ranks, message in [([0], "registered already"), ([1], "rank 1"), ([], "at least one")]:
        with pytest.raises(core.CoreError, match=message) as caught:
            core.add_process_set(ranks)
        assert caught.value.code == INVALID_ARGUMENT
    with pytest.raises(core.CoreError, match="cannot be removed") as caught:
        core.remove_process_set(0)
    assert caught.value.code == INVALID_ARGUMENT
    with pytest.raises(core.CoreError, match="itself") as caught:
        core.send(np.ones(2), name="m", dest=0)
    assert caught.value.code == INVALID_ARGUMENT


def test_calls_take_their_names_by_keyword(runtime: None) -> None:
    with pytest.raises(TypeError):
        core.allgather(np.ones(2), "name")
    with pytest.raises(TypeError, match="supported are"):
        core.recv("datetime64[s]", name="m", source=0)


def test_arrays_in_foreign_byte_order_are_refused(runtime: None) -> None:
    with pytest.raises(TypeError, match=r"swapped.*byte order.*supported are"):
        core.allreduce(
            np.ones(2, ">f4" if sys.byteorder == "little" else "<f4"), name="swapped", op=1
        )


@pytest.mark.skipif(
    not (_native.library_dir() / "libtfring_cuda.so").exists(), reason="built without GPU code"
)
def test_build_info() -> None:
    info = core.build_info()
    assert info["version"] == version.__version__
    assert pathlib.Path(info["runtime"]).parent == _native.library_dir().resolve()
    assert info["compiler"] and isinstance(info["cpu_features"], list)
    assert info["gpu_kernels"].endswith("PTX")


@pytest.fixture
def second_copy(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "copy"
    folder.mkdir()
    for library in _native.library_dir().glob("*.so"):
        shutil.copy(library, folder)
    return folder


def test_the_runtime_of_another_installation_is_refused(second_copy: pathlib.Path) -> None:
    """The linker gives a binding the runtime that is there already."""
    runtime = _native.library_dir().resolve() / "libtfring_runtime.so"
    code = f"import ctypes\nctypes.CDLL({str(runtime)!r})\n"
    code += "from tfring.runtime._native import core\n"
    done = run_python("-c", code, TFRING_X_LIB_DIR=str(second_copy))
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "another tfring installation" in done.stderr
    assert str(second_copy) in done.stderr and str(runtime) in done.stderr


def test_a_second_runtime_is_refused(second_copy: pathlib.Path) -> None:
    name = "libtfring_runtime.so"
    own = _native.library_dir().resolve()
    code = (
        "import ctypes\n"
        f"ctypes.CDLL({str(own / name)!r})\n"
        f"ctypes.CDLL({str(second_copy / name)!r})\n"
        "from tfring.runtime._native import core\n"
    )
    done = run_python("-c", code, TFRING_X_LIB_DIR=str(own))
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "two copies of the tfring runtime" in done.stderr


@pytest.mark.skipif(
    not (_native.library_dir() / "libtfring_cuda.so").exists(), reason="built without GPU code"
)
def test_only_tensors_on_a_gpu_load_the_code_for_them() -> None:
    code = (
        "import tfring, tensorflow as tf\n"
        "from tfring.runtime._native import core\n"
        "def loaded():\n"
        "    return 'libtfring_cuda.so' in open('/proc/self/maps').read()\n"
        "tfring.init()\n"
        "tfring.allreduce(tf.ones(3))\n"
        "before = loaded()\n"
        "core.build_info()\n"
        "print(before, loaded())\n"
    )
    done = run_python("-c", code)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_without_the_code_for_gpus(second_copy: pathlib.Path) -> None:
    (second_copy / "libtfring_cuda.so").unlink(missing_ok=True)
    code = (
        "from tfring.runtime._native import core\n"
        "print([core.build_info()['gpu_kernels']])\n"
        "core.find_nccl('')\n"
    )
    done = run_python("-c", code, TFRING_X_LIB_DIR=str(second_copy))
    assert done.stdout == "['']\n"
    assert "CoreError: Unavailable: tfring's code for GPUs cannot be loaded" in done.stderr


def test_missing_libraries_are_explained(tmp_path: pathlib.Path) -> None:
    done = run_python(
        "-c", "from tfring.runtime._native import core", TFRING_X_LIB_DIR=str(tmp_path)
    )
    assert done.returncode == 1
    assert str(tmp_path) in done.stderr and "install tfring" in done.stderr
