"""Compiles the pack kernels of ops/gpu/pack with NVRTC.

`--ptx` writes pack_kernels.ptx.inc, which is in the repository and in each build: run it
after a change to the kernels or to a header that they include.

`--folder` and `--output` make binaries for all architectures in a folder, and a C++ source that
embeds them (TFRING_PACK_BINARIES, docs/adr/0025).

`--find` prints the path of NVRTC's library, or only a reason on standard error. The wheel
nvidia-cuda-nvrtc-cu12 is all that is needed: the kernels include no header of CUDA.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "ops/gpu/pack/pack_kernels.cu"
PTX = ROOT / "ops/gpu/pack/pack_kernels.ptx.inc"
HEADERS = (
    "ops/gpu/pack/pack_batch.h",
    "ops/gpu/pack/pack_threads.h",
    "ops/runtime/backend/reduction/scaling.h",
    "ops/runtime/base/half.h",
)
# The parts of the standard library that the headers above use, which NVRTC does not have.
STANDARD_HEADERS = {
    "cstdint": """#pragma once
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t;
typedef long long int64_t; typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
""",
    "cstring": """#pragma once
namespace std { using ::memcpy; }
""",
}
# Architecture 8.9 runs code for 8.6, but not the reverse; 8.7 runs code for 8.6, and so on.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
PTX_ARCHITECTURE = 70
# A driver refuses PTX of a later version than its own. This version is CUDA 12.0's, the oldest
# driver of TensorFlow 2.16 to 2.21, and the kernels need no newer one.
PTX_VERSION = "8.0"
# No fused multiply-add, full subnormals: the bits are those of the CPU.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--device-as-default-execution-space")


def find_nvrtc() -> Path | None:
    """Finds NVRTC's library in the Python environment, from the wheel nvidia-cuda-nvrtc-cu12."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in sorted(Path(folder).glob("cuda_nvrtc/lib/libnvrtc.so.12")):
            return library
    return None


class Nvrtc:
    """The C functions of NVRTC that this program uses."""

    def __init__(self, library: Path):
        self._library = ctypes.CDLL(str(library))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            text = self._library.nvrtcGetErrorString(code).decode()
            raise RuntimeError(f"{name}: {text}")

    def _bytes(self, program: ctypes.c_void_p, name: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{name}Size", program, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{name}", program, data)
        return data.raw

    def compile(self, architecture: str) -> bytes:
        """Returns a cubin for "sm_80", PTX for "compute_80"."""
        texts = {name: (ROOT / name).read_text("utf-8") for name in HEADERS} | STANDARD_HEADERS
        strings = ctypes.c_char_p * len(texts)
        program = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            (ROOT / SOURCE).read_text("utf-8").encode(),
            Path(SOURCE).name.encode(),
            len(texts),
            strings(*(text.encode() for text in texts.values())),
            strings(*(name.encode() for name in texts)),
        )
        options = [f"--gpu-architecture={architecture}", *OPTIONS]
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        try:
            self._call("nvrtcCompileProgram", program, len(options), encoded)
        except RuntimeError as error:
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode()
            raise SystemExit(f"{SOURCE} for {architecture}: {error}\n{log}") from None
        data = self._bytes(program, "CUBIN" if architecture.startswith("sm_") else "PTX")
        self._call("nvrtcDestroyProgram", ctypes.byref(program))
        return data


def sources_hash() -> str:
    """A hash of all inputs of the PTX."""
    made_with = (STANDARD_HEADERS, OPTIONS, PTX_ARCHITECTURE, PTX_VERSION)
    digest = hashlib.sha256(repr(made_with).encode())
    for name in (SOURCE, *HEADERS):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def ptx_of(nvrtc: Nvrtc) -> str:
    """The text of pack_kernels.ptx.inc: PTX as a string of C++."""
    ptx = nvrtc.compile(f"compute_{PTX_ARCHITECTURE}").rstrip(b"\0").decode()
    ptx = re.sub(r"(?m)^\.version .*$", f".version {PTX_VERSION}", ptx)
    text = f'R"ptx({ptx.strip()}\n)ptx"\n'
    return head_of(text) + text


def head_of(text: str) -> str:
    """The first lines of pack_kernels.ptx.inc: hashes of the sources and of what follows."""
    return (
        "// Made by tools/compile_pack_kernels.py --ptx. Hashes of its sources and of itself:\n"
        f"// {sources_hash()}\n"
        f"// {hashlib.sha256(text.encode()).hexdigest()}\n"
    )


def source_of(images: dict[str, tuple[int, Path]]) -> str:
    """The C++ source with the table; `images`: architecture and file by symbol."""
    embed, table = [], []
    for symbol, (architecture, path) in images.items():
        embed.append(
            f'asm(".pushsection .rodata\\n.balign 64\\n.hidden {symbol}\\n.globl {symbol}\\n"\n'
            f'    "{symbol}:\\n.incbin \\"{path}\\"\\n.popsection\\n");\n'
            f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {symbol}[];'
        )
        table.append(f"      {{{architecture}, {symbol}, {path.stat().st_size}}},")
    return "\n".join(
        [
            "// Made by tools/compile_pack_kernels.py.",
            '#include "ops/gpu/pack/pack_images.h"',
            "",
            *embed,
            "",
            "namespace tfring {",
            "std::vector<PackImage> PackBinaries() {",
            "  return {",
            *table,
            "  };",
            "}",
            "}  // namespace tfring",
            "",
        ]
    )


def compile_all(library: Path, folder: Path, output: Path) -> None:
    nvrtc = Nvrtc(library)
    folder.mkdir(parents=True, exist_ok=True)
    images = {}
    for number in ARCHITECTURES:
        path = folder / f"pack_kernels.sm_{number}"
        path.write_bytes(nvrtc.compile(f"sm_{number}"))
        images[f"tfring_pack_sm_{number}"] = (number, path)
    output.write_text(source_of(images), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--find", action="store_true", help="print the path of NVRTC and end")
    parser.add_argument("--ptx", action="store_true", help=f"write {PTX.name} and end")
    parser.add_argument("--nvrtc", type=Path, help="libnvrtc.so.12; else that of the wheel")
    parser.add_argument("--folder", type=Path, help="where the binaries go")
    parser.add_argument("--output", type=Path, help="the C++ source that embeds them")
    options = parser.parse_args()
    library = options.nvrtc or find_nvrtc()
    if library is None:
        print(f"{sys.executable} has no nvidia-cuda-nvrtc-cu12", file=sys.stderr)
        return 1
    if options.find:
        print(library)
    elif options.ptx:
        PTX.write_text(ptx_of(Nvrtc(library)), "utf-8")
    else:
        compile_all(library, options.folder.resolve(), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
