"""Compiles the pack kernels of ops/runtime/backend/pack with NVRTC and makes a C++ file of them.

`--find` prints the path of NVRTC's library, or nothing and a reason on standard error. Else the
binaries (one per architecture, and PTX for those that come later) go into a folder, and beside
them a C++ source that embeds them: the table that pack_images.h declares. Nothing of CUDA but
NVRTC itself is needed: the kernels include no header of CUDA's.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "ops/runtime/backend/pack/pack_kernels.cu"
HEADERS = (
    "ops/runtime/backend/pack/pack_batch.h",
    "ops/runtime/backend/pack/pack_threads.h",
    "ops/runtime/backend/reduction/scaling.h",
    "ops/runtime/base/half.h",
)
# What the headers above use of the standard library, which NVRTC does not have.
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
# Architecture 8.9 runs code of 8.6, but not the other way round; 8.7 takes that of 8.6, and so on.
ARCHITECTURES = (70, 75, 80, 86, 89, 90, 100, 120)
PTX_ARCHITECTURE = 70
# No fused multiply-add, full subnormals: the bits are those of the CPU.
OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--device-as-default-execution-space")


def find_nvrtc() -> Path | None:
    """NVRTC's library in the Python environment, from the wheel nvidia-cuda-nvrtc-cu12."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in sorted(Path(folder).glob("cuda_nvrtc/lib/libnvrtc.so.12")):
            return library
    return None


class Nvrtc:
    """NVRTC's C functions, as far as they are used here."""

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
        """A cubin for "sm_80", PTX for "compute_80"."""
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


def source_of(images: dict[str, tuple[int, Path]]) -> str:
    """The C++ source with the table; `images`: architecture (0: PTX) and file by symbol."""
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
            '#include "ops/runtime/backend/pack/pack_images.h"',
            "",
            *embed,
            "",
            "namespace tfring {",
            "const std::vector<PackImage>& BuiltPackImages() {",
            "  static const std::vector<PackImage> images = {",
            *table,
            "  };",
            "  return images;",
            "}",
            "}  // namespace tfring",
            "",
        ]
    )


def compile_all(library: Path, folder: Path, output: Path) -> None:
    nvrtc = Nvrtc(library)
    folder.mkdir(parents=True, exist_ok=True)
    images = {}
    wanted = [(f"sm_{sm}", sm) for sm in ARCHITECTURES] + [(f"compute_{PTX_ARCHITECTURE}", 0)]
    for architecture, number in wanted:
        path = folder / f"pack_kernels.{architecture}"
        path.write_bytes(nvrtc.compile(architecture))
        images[f"tfring_pack_{architecture}"] = (number, path)
    output.write_text(source_of(images), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--find", action="store_true", help="print the path of NVRTC and end")
    parser.add_argument("--nvrtc", type=Path, help="libnvrtc.so.12")
    parser.add_argument("--folder", type=Path, help="where the binaries go")
    parser.add_argument("--output", type=Path, help="the C++ source that embeds them")
    options = parser.parse_args()
    if options.find:
        library = find_nvrtc()
        if library is None:
            print(f"{sys.executable} has no nvidia-cuda-nvrtc-cu12", file=sys.stderr)
            return 1
        print(library)
        return 0
    compile_all(options.nvrtc, options.folder.resolve(), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
