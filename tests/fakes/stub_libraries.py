"""Makes empty CUDA libraries for TensorFlow's GPU wheel: `stub_libraries.py SITE OUT`.

TensorFlow registers a GPU only if it can open all libraries that its GPU build was made for. What
it asks each one for stands as text in TensorFlow's own libraries; every such function becomes one
that says that it has succeeded and does nothing. The driver and the CUDA runtime are the fakes,
see CMakeLists.txt.
"""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TENSORFLOW_LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")


class Stub(NamedTuple):
    """One library: what its functions' names begin with, what they return, and exceptions in C."""

    prefix: str
    result: int = 0
    code: str = ""


def creates(name: str) -> str:
    """A function that gives out a handle, in C.

    Args:
        name: The function's name.

    Returns:
        Its definition.
    """
    return f"int {name}(void **handle) {{ static int object; *handle = &object; return 0; }}\n"


# By the names under which TensorFlow 2.16 to 2.21 opens them.
STUBS = {
    "libcudnn.so.9": Stub(
        "cudnn",
        code=creates("cudnnCreate")
        + """
size_t cudnnGetVersion(void) { return 90300; }
size_t cudnnGetCudartVersion(void) { return 12080; }
const char *cudnnGetErrorString(int status) { return "stub of cuDNN"; }
int cudnnGetProperty(int what, int *value) { *value = what == 0 ? 9 : what == 1 ? 3 : 0; return 0; }
""",
    ),
    "libcublas.so.12": Stub("cublas", code=creates("cublasCreate_v2")),
    "libcublasLt.so.12": Stub("cublasLt", code=creates("cublasLtCreate")),
    "libcusolver.so.11": Stub("cusolver"),
    "libcusparse.so.12": Stub("cusparse"),
    "libcufft.so.11": Stub("cufft"),
    "libnvidia-ml.so.1": Stub(
        "nvml",
        result=3,  # not supported
        code="""
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int error) { return "stub of NVML"; }
""",
    ),
}


def names_in(library: Path, prefix: str) -> set[str]:
    """The texts of a file that can be names of functions with a prefix.

    Args:
        library: Any file.
        prefix: What the names begin with; a capital letter or "_" follows it.

    Returns:
        The names.
    """
    pattern = re.compile(rb"\0(" + prefix.encode() + rb"[A-Z_][A-Za-z0-9_]*)\0")
    start = b"\0" + prefix.encode()
    names: set[str] = set()
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # Not with the pattern alone: looking for a constant is many times faster in a large file.
        position = data.find(start)
        while position >= 0:
            if match := pattern.match(data, position):
                names.add(match[1].decode())
            position = data.find(start, position + 1)
    return names


def source(stub: Stub, names: set[str]) -> str:
    """The C source of a stub.

    Args:
        stub: What to make.
        names: The functions that TensorFlow looks for.

    Returns:
        The text.
    """
    defined = set(re.findall(r"(\w+)\(", stub.code))
    others = [prefix for prefix in ("cublasLt", "cublasXt") if prefix != stub.prefix]
    wanted = sorted(name for name in names - defined if not name.startswith(tuple(others)))
    functions = "".join(f"int {name}(void) {{ return {stub.result}; }}\n" for name in wanted)
    return f"#include <stddef.h>\n{stub.code}{functions}"


def build(site: Path, out: Path) -> None:
    """Compiles all stubs; those that are there already are kept.

    Args:
        site: The folder that holds the package tensorflow of the GPU wheel.
        out: Where the libraries go.

    Raises:
        subprocess.CalledProcessError: If the compiler fails.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, stub in STUBS.items():
        if (out / name).exists():
            continue
        found: set[str] = set()
        for library in TENSORFLOW_LIBRARIES:
            found |= names_in(site / "tensorflow" / library, stub.prefix)
        with tempfile.TemporaryDirectory(dir=out) as folder:
            text, library_file = Path(folder, "stub.c"), Path(folder, name)
            text.write_text(source(stub, found), "utf-8")
            compiler = os.environ.get("CC", "cc")
            flags = ["-w", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
            subprocess.run([compiler, *flags, str(text), "-o", str(library_file)], check=True)
            library_file.rename(out / name)  # at once: other processes may look for it


if __name__ == "__main__":
    build(Path(sys.argv[1]), Path(sys.argv[2]))
