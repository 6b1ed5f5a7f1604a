"""The rules of the house, read off the sources: arrows between rooms, sizes, no machine paths."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import source_rules as rules

ROOT = Path(__file__).resolve().parents[3]
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_INTERFACE_METHODS = 8
# Folders that exist on one machine only: home directories, temporary and work areas.
MACHINE_PATH = re.compile(r"(?<![\w.$}/])/(?:home|root|Users|work|opt/[a-z]+env)/[\w.-]+")


def listed_files(*suffixes: str) -> list[str]:
    """Files of the project, tracked or about to be, with one of the suffixes."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    else:  # an unpacked source archive
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    found = [name for name in names if name.endswith(suffixes) and (ROOT / name).is_file()]
    return sorted(name for name in found if not name.startswith(("build", ".venv", "dist")))


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def collect(names: list[str], check: Callable[[str, str], list[str]]) -> str:
    assert names, "no file found: the check would pass on nothing"
    return "\n".join(error for name in names for error in check(name, text_of(name)))


def test_includes_follow_the_arrows() -> None:
    names = [name for name in listed_files(".cc", ".h") if name.startswith("ops/")]
    assert not collect(names, rules.include_errors)


def test_imports_follow_the_arrows() -> None:
    names = [name for name in listed_files(".py") if name.startswith("tfring/")]
    assert not collect(names, rules.import_errors)


def test_runtime_reads_no_environment() -> None:
    def check(name: str, text: str) -> list[str]:
        return [f"{name}: calls getenv"] if "getenv(" in rules.blank_out(text) else []

    names = [name for name in listed_files(".cc", ".h") if name.startswith("ops/runtime/")]
    assert not collect(names, check)


def test_files_are_short() -> None:
    def check(name: str, text: str) -> list[str]:
        lines = text.count("\n")
        return [f"{name}: {lines} lines"] if lines > MAX_FILE_LINES else []

    assert not collect(listed_files(".cc", ".h", ".py", ".sh"), check)


def test_functions_are_short() -> None:
    def check(name: str, text: str) -> list[str]:
        functions = rules.py_functions(text) if name.endswith(".py") else rules.cc_functions(text)
        return [
            f"{name}:{block.first}: {block.head[-60:]} has {block.lines} lines"
            for block in functions
            if block.lines > MAX_FUNCTION_LINES
        ]

    assert not collect(listed_files(".cc", ".h", ".py"), check)


def test_interfaces_are_small() -> None:
    def check(name: str, text: str) -> list[str]:
        sizes = rules.interface_sizes(text)
        return [
            f"{name}: {k} has {v} methods" for k, v in sizes.items() if v > MAX_INTERFACE_METHODS
        ]

    assert not collect([name for name in listed_files(".h") if name.startswith("ops/")], check)


def test_no_machine_paths() -> None:
    def check(name: str, text: str) -> list[str]:
        return [f"{name}: {path}" for path in MACHINE_PATH.findall(text)]

    this_test = "tests/python/structure/test_structure.py"
    names = listed_files(
        ".cc", ".h", ".py", ".sh", ".md", ".txt", ".cmake", ".toml", ".bzl", ".bazel", "Makefile"
    )
    assert not collect([name for name in names if name != this_test], check)


# The scanners themselves: each must find what it looks for.


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("ops/runtime/core/a.cc", '#include "ops/runtime/engine/engine.h"'),
        ("ops/runtime/base/a.h", '#include "ops/runtime/core/plan.h"'),
        ("ops/runtime/backend/cpu/a.cc", '#include "ops/runtime/transport/tcp_data.h"'),
        ("ops/runtime/transport/a.cc", '#include "ops/runtime/core/wire.h"'),
        ("ops/runtime/engine/a.cc", "#include <pybind11/pybind11.h>"),
        ("ops/bindings/a.cc", '#include "tensorflow/core/framework/op.h"'),
        ("ops/runtime/core/a.cc", "#include <mutex>"),
        ("ops/runtime/core/a.cc", "  #  include <sys/socket.h>"),
        ("ops/runtime/core/a.cc", '#include "plan.h"'),
        ("ops/unknown/a.cc", "#include <vector>"),
    ],
)
def test_a_wrong_include_is_found(path: str, line: str) -> None:
    assert len(rules.include_errors(path, line + "\n")) == 1


def test_a_right_include_passes() -> None:
    text = '#include "ops/runtime/core/plan.h"\n#include <vector>\n'
    assert rules.include_errors("ops/runtime/engine/engine.h", text) == []
    assert rules.include_errors("ops/runtime/core/wire.h", text) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tfring/world.py", "import tensorflow as tf\n"),
        ("tfring/launcher/cli.py", "from tensorflow import keras\n"),
        ("tfring/collectives.py", "import tfring.keras\n"),
        ("tfring/bootstrap/mpi.py", "from mpi4py import MPI\n"),
        ("tfring/environments/mpi.py", "def f():\n    from mpi4py import MPI\n"),
        ("tfring/x.py", "if True:\n    import horovod\n"),
    ],
)
def test_a_wrong_import_is_found(path: str, text: str) -> None:
    assert rules.import_errors(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tfring/world.py", "def f():\n    import tensorflow as tf\n"),
        ("tfring/bootstrap/mpi.py", "def f():\n    from mpi4py import MPI\n"),
        ("tfring/collectives.py", "import tensorflow as tf\n"),
        (
            "tfring/world.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import keras\n",
        ),
    ],
)
def test_a_right_import_passes(path: str, text: str) -> None:
    assert rules.import_errors(path, text) == []


def test_functions_are_measured() -> None:
    text = """
namespace a {
// A { in a comment and a "}" do not count.
class B : public C {
 public:
  B() : x_(1), y_{2} {}
  int Get() const {
    const char* s = "}}}";
    if (s) {
      return 1'000;
    }
    return [&] { return 2; }();
  }
};
template <typename T>
void Long(T t) {
  for (;;) {
  }

}
}  // namespace a
"""
    sizes = {block.head: block.lines for block in rules.cc_functions(text)}
    assert sizes["int Get() const"] == 7
    assert sizes["template <typename T> void Long(T t)"] == 6
    assert rules.py_functions("def f():\n    a = 1\n    return a\n")[0].lines == 3


def test_pure_virtual_methods_are_counted() -> None:
    text = (
        "class A {\n virtual ~A() = default;\n virtual int F(int) = 0;\n virtual void G() = 0;\n};"
    )
    assert rules.interface_sizes(text) == {"A": 2}


def test_machine_paths_are_recognised() -> None:
    assert MACHINE_PATH.findall("cd /home/someone/project") == ["/home/someone"]
    work = "work"  # joined below, so that this file itself holds no such path
    others = f"/usr/bin/env $ROOT/home/x ${{A}}/{work}/y https://x.org/home/z"
    assert not MACHINE_PATH.findall(others)
