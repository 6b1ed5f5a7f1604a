"""The fake CUDA driver, for programs that run on it: see tests/fakes/cuda/fake_cuda.h."""

from __future__ import annotations

import ctypes


def _library() -> ctypes.CDLL:
    # TensorFlow has opened the library, or it is on LD_LIBRARY_PATH.
    library = ctypes.CDLL("libcuda.so.1")
    library.FakeCudaGet.restype = ctypes.c_long
    library.FakeCudaCount.restype = ctypes.c_long
    library.FakeCudaSet.argtypes = [ctypes.c_char_p, ctypes.c_long]
    library.FakeCudaInject.argtypes = [ctypes.c_char_p, ctypes.c_long]
    return library


def is_driver() -> bool:
    """Whether the CUDA driver of this process is the fake."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "FakeCudaCount")
    except OSError:
        return False


def set_value(name: str, value: int) -> None:
    """Changes a setting: `seed`, `delay_us`, `hold`, ..."""
    _library().FakeCudaSet(name.encode(), value)


def count(name: str) -> int:
    """Returns a counter: `d2h_copies`, `launches`, `live_bytes`, ..."""
    return int(_library().FakeCudaCount(name.encode()))


def inject(fault: str, nth: int) -> None:
    """Makes the nth operation from now on fail: `sticky`, `hang`, ..."""
    _library().FakeCudaInject(fault.encode(), nth)
