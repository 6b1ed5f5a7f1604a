"""The GPUs of this machine, asked of the CUDA driver (https://docs.nvidia.com/cuda/cuda-driver-api).

It needs no CUDA toolkit and creates no context, so it takes no memory of a GPU.
"""

from __future__ import annotations

import ctypes
import uuid
from typing import NamedTuple

DEFAULT_DRIVER = "libcuda.so.1"

# Of CUdevice_attribute.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76


class DriverError(RuntimeError):
    """The CUDA driver is missing or does not work. The message says what it answered."""


class Gpu(NamedTuple):
    """One GPU that CUDA shows to this process."""

    number: int  # its number in this process; CUDA_VISIBLE_DEVICES changes it
    name: str  # "NVIDIA H100 80GB HBM3", say
    uuid: str  # "GPU-8932f937-...", the same for every process of the machine
    capability: tuple[int, int]  # compute capability, as (9, 0)
    memory: int  # bytes in all


class Driver:
    """The CUDA driver."""

    def __init__(self, driver: str) -> None:
        """Loads the library with this path or name.

        Raises:
            DriverError: It cannot be loaded, or finds no GPU.
        """
        try:
            self._library = ctypes.CDLL(driver)
        except OSError as error:
            raise DriverError(f"the loader says: {error}") from None
        self._call("cuInit", ctypes.c_uint(0))

    def version(self) -> str:
        """Returns the CUDA version that the driver supports, as "12.8"."""
        version = self._number("cuDriverGetVersion")
        return f"{version // 1000}.{version % 1000 // 10}"

    def gpus(self) -> list[Gpu]:
        """Returns the GPUs that this process can use, in CUDA's order.

        Raises:
            DriverError: The driver refuses a question.
        """
        return [self._gpu(index) for index in range(self._number("cuDeviceGetCount"))]

    def _gpu(self, index: int) -> Gpu:
        device = ctypes.c_int(self._number("cuDeviceGet", ctypes.c_int(index)))
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        identity = ctypes.create_string_buffer(16)
        self._call("cuDeviceGetUuid_v2", identity, device)
        memory = ctypes.c_size_t(0)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        major, minor = (
            self._number("cuDeviceGetAttribute", ctypes.c_int(which), device)
            for which in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR)
        )
        return Gpu(
            number=index,
            name=name.value.decode(errors="replace"),
            uuid=f"GPU-{uuid.UUID(bytes=identity.raw)}",
            capability=(major, minor),
            memory=memory.value,
        )

    def _number(self, name: str, *arguments: object) -> int:
        """Calls a function that writes a number to its first argument."""
        value = ctypes.c_int(0)
        self._call(name, ctypes.byref(value), *arguments)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DriverError(f"the CUDA driver has no {name}: it is too old") from None
        code = function(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
            said = text.value.decode(errors="replace") if text.value else "unknown error"
            raise DriverError(f"{name} answers {code} ({said})")
