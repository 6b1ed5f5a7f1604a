"""The GPUs of this machine, asked of the CUDA driver (https://docs.nvidia.com/cuda/cuda-driver-api).

It needs no CUDA toolkit and creates no context, so it takes no memory of a GPU.
"""

from __future__ import annotations

import ctypes
import uuid
from dataclasses import dataclass

DEFAULT_DRIVER = "libcuda.so.1"

# Of CUdevice_attribute.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


class DriverError(RuntimeError):
    """The CUDA driver is missing or does not work. The message says what it answered."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that CUDA shows to this process.

    Attributes:
        index: Its number in this process; CUDA_VISIBLE_DEVICES changes it.
        name: "NVIDIA H100 80GB HBM3", say.
        uuid: "GPU-8932f937-...", the same for every process of the machine.
        capability: Compute capability, as (9, 0).
        memory: Bytes in all.
        peers: Indices of the other GPUs whose memory it can use directly.
    """

    index: int
    name: str
    uuid: str
    capability: tuple[int, int]
    memory: int
    peers: tuple[int, ...]


def driver_version(driver: str = DEFAULT_DRIVER) -> str:
    """Returns the CUDA version that the driver supports, as "12.8".

    Args:
        driver: Path or name of the driver library.

    Raises:
        DriverError: It cannot be loaded, or finds no GPU.
    """
    library = _load(driver)
    version = ctypes.c_int(0)
    _call(library, "cuDriverGetVersion", ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def list_gpus(driver: str = DEFAULT_DRIVER) -> list[Gpu]:
    """Returns the GPUs that this process can use, in CUDA's order.

    Args:
        driver: Path or name of the driver library.

    Raises:
        DriverError: It cannot be loaded, finds no GPU or refuses a question.
    """
    library = _load(driver)
    count = ctypes.c_int(0)
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    return [_gpu(library, index, count.value) for index in range(count.value)]


def _load(driver: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(driver)
    except OSError as error:
        raise DriverError(f"the loader says: {error}") from None
    _call(library, "cuInit", ctypes.c_uint(0))
    return library


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        function = getattr(library, name)
    except AttributeError:
        raise DriverError(f"the CUDA driver has no {name}: it is too old") from None
    code = function(*arguments)
    if code != 0:
        text = ctypes.c_char_p()
        library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        said = text.value.decode(errors="replace") if text.value else "unknown error"
        raise DriverError(f"{name} answers {code} ({said})")


def _gpu(library: ctypes.CDLL, index: int, count: int) -> Gpu:
    device = ctypes.c_int(0)
    _call(library, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
    name = ctypes.create_string_buffer(256)
    _call(library, "cuDeviceGetName", name, ctypes.c_int(len(name)), device)
    identity = ctypes.create_string_buffer(16)
    _call(library, "cuDeviceGetUuid_v2", identity, device)
    memory = ctypes.c_size_t(0)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    return Gpu(
        index=index,
        name=name.value.decode(errors="replace"),
        uuid=f"GPU-{uuid.UUID(bytes=identity.raw)}",
        capability=(
            _attribute(library, device, _CAPABILITY_MAJOR),
            _attribute(library, device, _CAPABILITY_MINOR),
        ),
        memory=memory.value,
        peers=tuple(
            other
            for other in range(count)
            if other != index and _can_access(library, device, other)
        ),
    )


def _attribute(library: ctypes.CDLL, device: ctypes.c_int, number: int) -> int:
    value = ctypes.c_int(0)
    _call(library, "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), device)
    return value.value


def _can_access(library: ctypes.CDLL, device: ctypes.c_int, other: int) -> bool:
    peer = ctypes.c_int(0)
    _call(library, "cuDeviceGet", ctypes.byref(peer), ctypes.c_int(other))
    able = ctypes.c_int(0)
    _call(library, "cuDeviceCanAccessPeer", ctypes.byref(able), device, peer)
    return able.value != 0
