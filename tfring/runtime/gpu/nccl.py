"""Which libnccl.so.2 the runtime gets.

The runtime loads it when the first tensor in GPU memory comes, and takes the first of: the path in
TFRING_NCCL_LIBRARY, a library that is in the process already, the one of NVIDIA's Python package
(nvidia-nccl-cu12 or -cu13, which TensorFlow's extra [and-cuda] installs), the system's. This module
finds the third, which only Python can.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfring.runtime import _native
from tfring.runtime.gpu.driver import DEFAULT_DRIVER

SETTING = "NCCL_LIBRARY"
_NAME = "libnccl.so.2"


@dataclass(frozen=True)
class Found:
    """The NCCL that the runtime would load.

    Attributes:
        path: Its file; "" if there is none.
        why: Where that path comes from.
        version: As ncclGetVersion says it, 22707 for 2.27.7; 0 if there is none.
        trouble: Why there is none; "" if there is one.
    """

    path: str
    why: str
    version: int
    trouble: str

    @property
    def text(self) -> str:
        """One line for people."""
        if self.trouble:
            return f"none: {self.trouble}"
        return f"{version_text(self.version)} in {self.path} ({self.why})"


def version_text(version: int) -> str:
    """Returns NCCL's version number as people write it: 22707 is 2.27.7."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def find_nccl(runtime: Mapping[str, str]) -> Found:
    """Has the runtime find and load the library, as for its first collective on a GPU.

    That takes half a minute at most, where a library hangs.

    Args:
        runtime: The runtime's settings that are set, by name without prefix.
    """
    loaded = nccl_in_process()
    file = with_nccl(dict(runtime)).get(SETTING, "")
    try:
        core = _native.core
    except (ImportError, OSError) as error:
        return Found("", "", 0, f"the compiled runtime cannot be loaded ({error})")
    path, version, trouble = "", 0, ""
    try:
        path, version = core.find_nccl(file)
    except core.CoreError as error:
        trouble = error.message
    if runtime.get(SETTING):
        why = f"TFRING_{SETTING}"
    elif loaded is not None:
        why = "loaded already"
    else:
        why = "NVIDIA's Python package" if file else "the system's"
    return Found(path, why, version, trouble)


def nccl_of_package() -> str | None:
    """Returns the path of the library in NVIDIA's Python package, or None without it."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):  # there is no package `nvidia`, or one that is broken
        return None
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        path = Path(folder) / "lib" / _NAME
        if path.is_file():
            return str(path)
    return None


def nccl_in_process(maps: str = "/proc/self/maps") -> str | None:
    """Returns the path of a libnccl that this process has loaded, or None.

    Args:
        maps: The process's memory map.
    """
    try:
        text = Path(maps).read_text(errors="replace")
    except OSError:
        return None
    if "/libnccl.so" not in text:  # the expression takes milliseconds to find that out
        return None
    match = re.search(r"\S*/libnccl\.so[.\d]*$", text, re.MULTILINE)
    return match.group() if match else None


def with_nccl(runtime: dict[str, str]) -> dict[str, str]:
    """Returns the runtime's settings with the path of NVIDIA's package where nothing else counts.

    Args:
        runtime: The settings that are set, by name without prefix.
    """
    if runtime.get(SETTING) or nccl_in_process() is not None:
        return runtime
    path = nccl_of_package()
    return runtime if path is None else {**runtime, SETTING: path}


def missing_gpu(runtime: Mapping[str, str]) -> str:
    """Returns why this process can have no GPU, though NCCL is asked for; "" otherwise.

    Does not initialise CUDA: the program may still choose its devices.

    Args:
        runtime: The runtime's settings that are set, by name without prefix.
    """
    if runtime.get("GPU_OPERATIONS", "").lower() != "nccl":
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible} hides all"
    driver = runtime.get("CUDA_DRIVER") or DEFAULT_DRIVER
    try:
        ctypes.CDLL(driver)
    except OSError as error:
        return f"there is no CUDA driver: {error}"
    return ""


def use_interface(name: str) -> None:
    """Has NCCL use the network interface that the job uses, unless NCCL_SOCKET_IFNAME is set.

    NCCL takes the first that is up, also one that does not lead to the other hosts. Then it waits
    there until it gives up.

    Args:
        name: The interface; "" leaves NCCL its choice.
    """
    if name:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # =: no other that begins like it


def fix_sums(runtime: Mapping[str, str]) -> None:
    """With TFRING_DETERMINISTIC has NCCL use one algorithm and one protocol.

    NCCL's own choice may be NVLS, whose sums have other bits from call to call
    (https://github.com/NVIDIA/nccl/issues/1497). What the user has set stays. NCCL reads it when it
    makes its first communicator.

    Args:
        runtime: The runtime's settings that are set, by name without prefix.
    """
    if runtime.get("DETERMINISTIC") == "1":
        os.environ.setdefault("NCCL_ALGO", "Ring")
        os.environ.setdefault("NCCL_PROTO", "Simple")
