"""The scanners behind test_structure.py find what they look for, and nothing else."""

from __future__ import annotations

import pytest
import python_rules
import source_rules as rules


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("ops/runtime/protocol/message/a.cc", '#include "ops/runtime/process/factory.h"'),
        ("ops/runtime/base/a.h", '#include "ops/runtime/protocol/message/plan.h"'),
        ("ops/runtime/backend/a.cc", '#include "ops/runtime/transport/tcp_data.h"'),
        ("ops/runtime/transport/a.cc", '#include "ops/runtime/protocol/message/wire.h"'),
        ("ops/runtime/process/a.cc", "#include <pybind11/pybind11.h>"),
        ("ops/runtime/protocol/engine/a.cc", '#include "tensorflow/core/framework/op.h"'),
        ("ops/bindings/a.cc", '#include "tensorflow/core/framework/op.h"'),
        ("ops/runtime/protocol/message/a.cc", '#include "plan.h"'),
        ("ops/runtime/base/a.cc", '#include "tests/cc/a.h"'),
        ("ops/unknown/a.cc", "#include <vector>"),
    ],
)
def test_a_wrong_include_is_found(path: str, line: str) -> None:
    assert len(rules.include_errors(path, line + "\n")) == 1


def test_a_right_include_passes() -> None:
    text = '#include "ops/runtime/protocol/message/plan.h"\n#include <vector>\n'
    assert rules.include_errors("ops/runtime/process/factory.h", text) == []
    assert rules.include_errors("ops/runtime/protocol/message/wire.h", text) == []


@pytest.mark.parametrize(
    "line",
    [
        "#include <mutex>",
        "  #  include <sys/socket.h>",
        '#include "ops/runtime/base/indirect.h"',
        "std::thread worker(Run);",
        "std::lock_guard<std::mutex> lock(mutex_);",
        "int fd = socket(AF_INET, SOCK_STREAM, 0);",
        "if (::send(fd, data, size, 0) < 0) return;",
        "clock_gettime(CLOCK_MONOTONIC, &now);",
        "auto now = std::chrono::steady_clock::now();",
        'const char* value = getenv("TFRING_X");',
        "#define NOW() std::chrono::steady_clock::now()",
        "#define NOW() time(nullptr)",
        "using M = std :: mutex;",
        "std::binary_semaphore ready(1);",
        "#include <latch>",
        'std::FILE* file = std::fopen("x", "r");',
        "using ::time;",
        "auto call = &::socket;",
        "timespec_get(&now, TIME_UTC);",
        'asm volatile("rdtsc");',
        "auto now = __builtin_ia32_rdtsc();",
        '#include "ops/runtime/base/macro.h"',
    ],
)
def test_what_is_not_pure_is_found(line: str) -> None:
    files = {
        "ops/runtime/protocol/engine/a.cc": line + "\n",
        "ops/runtime/base/indirect.h": "#include <ctime>\n",
        "ops/runtime/base/macro.h": "#define OPEN(a) socket(a, 1, 0)\n",
    }
    assert rules.purity_errors(files)
    files["ops/runtime/transport/a.cc"] = files.pop("ops/runtime/protocol/engine/a.cc")
    assert rules.purity_errors(files) == []


def test_what_is_pure_passes() -> None:
    text = """
#include <vector>
#define SHOW(x) #x
// Sends with socket(), under a std::mutex: only a comment.
void F(Transport* t) {
  std::snprintf(SHOW(time));
  ::tfring::read(1);
  t->send(1);
  Send("std::thread");
  table.open(2);
  wire::read(3);
}
"""
    assert rules.purity_errors({"ops/runtime/protocol/engine/a.cc": text}) == []


@pytest.mark.parametrize(
    ("name", "right"),
    [("a.h", True), ("a_b.cc", True), ("BUILD", True), ("a.inc", False), ("a.cpp", False)],
)
def test_a_file_of_another_kind_is_found(name: str, right: bool) -> None:
    assert bool(rules.RUNTIME_FILE.fullmatch(f"ops/runtime/base/{name}")) == right


# Two packages that may import each other one way, as in tfring/.
PLANTED = {
    "tfring/__init__.py": "",
    "tfring/world.py": "from tfring.runtime.sets import registry\n",
    "tfring/runtime/sets/__init__.py": "",
    "tfring/runtime/sets/registry.py": "import os\n",
}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tfring/runtime/sets/registry.py", "from tfring import world\n"),  # upward
        ("tfring/runtime/sets/registry.py", "from tfring.world import init\n"),
        ("tfring/runtime/sets/registry.py", "from ... import world\n"),
        ("tfring/runtime/sets/registry.py", "def f():\n    from tfring import world\n"),
        ("tfring/runtime/sets/registry.py", "from tfring import init\n"),
        (
            "tfring/runtime/topology.py",
            "if TYPE_CHECKING:\n    pass\nelse:\n    from tfring import world\n",
        ),
        ("tfring/runtime/topology.py", "if TYPE_CHECKING:\n    from tfring import world\n"),
        ("tfring/runtime/topology.py", "if typing.TYPE_CHECKING:\n    from tfring import world\n"),
        ("tfring/runtime/topology.py", "if not TYPE_CHECKING:\n    from tfring import world\n"),
        ("tfring/runtime/topology.py", "if DEBUG or TYPE_CHECKING:\n    import tfring.world\n"),
        ("tfring/launch/__init__.pyi", "from tfring.world import init as init\n"),
        ("tfring/keras/__init__.pyi", "from tfring import init as init\n"),
        ("tfring/__init__.pyi", "import torch\n"),
        ("tfring/world.py", "def f():\n    from tfring import process_sets\n"),  # in a function
        ("tfring/world.py", "class A:\n    def f(self):\n        import os\n"),
        ("tfring/world.py", "import tensorflow as tf\n"),
        ("tfring/world.py", "def f():\n    import torch\n"),
        ("tfring/job/bootstrap/mpi.py", "from mpi4py import MPI\n"),
        ("tfring/drawer/x.py", "import os\n"),  # a package that the table does not know
    ],
)
def test_a_wrong_import_is_found(path: str, text: str) -> None:
    assert python_rules.import_errors(path, {**PLANTED, path: text})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tfring/world.py", PLANTED["tfring/world.py"]),
        ("tfring/runtime/exceptions.py", "def f():\n    import tensorflow as tf\n"),
        ("tfring/job/bootstrap/mpi.py", "def f():\n    from mpi4py import MPI\n"),
        ("tfring/__init__.pyi", "from tfring.world import init as init\n"),
        ("tfring/keras/__init__.pyi", "from tfring.world import init as init\n"),
    ],
)
def test_a_right_import_passes(path: str, text: str) -> None:
    assert python_rules.import_errors(path, {**PLANTED, path: text}) == []


@pytest.mark.parametrize(
    "text",
    [
        "importlib.import_module(name)",
        "import importlib.util",
        "from importlib import import_module as load",
        'getattr(importlib, "import_module")(name)',
        "__import__(name)",
        "builtins.__import__(name)",
        "pkgutil.resolve_name(name)",
        'exec("import tfring.world")',
        'eval("tfring.world")',
        'sys.modules["tfring.world"]',
        "from sys import modules",
    ],
)
def test_an_import_by_name_is_found(text: str) -> None:
    assert python_rules.import_by_name_errors("tfring/world.py", text)
    assert python_rules.import_by_name_errors("tfring/horovod/shim.py", text) == []


def test_other_names_pass() -> None:
    text = 'import sys\nsys.path\nkeras.modules\nevaluate("exec(importlib)")\n'
    assert python_rules.import_by_name_errors("tfring/world.py", text) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "def f():\n    import cloudpickle as quick",
        "from pickle import loads",
        "objects.allgather_object(1)",
        "from tfring.collectives.objects import broadcast_object as send",
        "gather = objects.allgather_object",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_what_pickles_is_found(text: str) -> None:
    assert python_rules.pickle_errors("tfring/keras/callbacks/guard.py", text)
    assert python_rules.pickle_errors("tfring/collectives/objects.py", text) == []


def test_what_does_not_pickle_passes() -> None:
    text = '"""As broadcast_object."""\nimport json\nobjects.allgather_json([1], name="pickle")\n'
    assert python_rules.pickle_errors("tfring/keras/callbacks/guard.py", text) == []
    stub = "from tfring.collectives.objects import allgather_object as allgather_object\n"
    assert python_rules.pickle_errors("tfring/__init__.pyi", stub) == []


@pytest.mark.parametrize(
    "planted",
    [
        {"tfring/runtime/sets/registry.py": "from tfring import world\n"},
        {"tfring/runtime/sets/registry.py": "def f():\n    import tfring.world\n"},
        {"tfring/runtime/sets/registry.py": "if TYPE_CHECKING:\n    import tfring.world\n"},
        {"tfring/runtime/sets/__init__.py": "from tfring.world import init\n"},
        {
            "tfring/runtime/sets/__init__.py": "from tfring.runtime.sets.registry import add\n",
            "tfring/runtime/sets/registry.py": "from tfring.runtime.sets import add\n",
        },
    ],
)
def test_a_circle_is_found(planted: dict[str, str]) -> None:
    assert python_rules.circle(python_rules.import_graph(PLANTED, all_imports=True)) == []
    graph = python_rules.import_graph({**PLANTED, **planted}, all_imports=True)
    found = python_rules.circle(graph)
    assert found and found[0] == found[-1] and set(found) >= set(planted)


def test_tensorflow_behind_an_import_is_found() -> None:
    heavy = {"tfring/runtime/sets/registry.py": "import tensorflow as tf\n"}
    (error,) = python_rules.tensorflow_errors({**PLANTED, **heavy})
    assert error == "tfring/world.py loads TensorFlow through tfring/runtime/sets/registry.py"
    late = {"tfring/runtime/sets/registry.py": "def f():\n    import tensorflow as tf\n"}
    assert python_rules.tensorflow_errors({**PLANTED, **late}) == []
    types = {"tfring/runtime/sets/registry.py": "if TYPE_CHECKING:\n    import tensorflow\n"}
    assert python_rules.tensorflow_errors({**PLANTED, **types}) == []


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
    assert rules.py_functions("@g\n@h\ndef f():\n    a = 1\n    return a\n")[0].lines == 5


@pytest.mark.parametrize(
    ("opening", "lines"),
    [
        ('extern "C" void F() {', 3),
        ("struct stat F() {", 3),
        ("static struct msghdr F(std::vector<iovec>* parts, size_t size) {", 3),
        ("enum K F() {", 3),
        ("A::A(int x)\n    : x_{x},\n      y_(x),\n      z_{x} {", 6),
        ("A::A(int x) noexcept\n    : Base<int>{x}, f_{[] { return 1; }} {", 4),
        ("void F() try {\n  a();\n} catch (const B&) {", 5),
    ],
)
def test_functions_with_a_rare_opening_are_measured(opening: str, lines: int) -> None:
    text = f"int before;\n{opening}\n  a();\n}}\nvoid After() {{}}\n"
    first, after = rules.cc_functions(text)
    assert (first.first, first.lines) == (2, lines)
    assert after.head == "void After()"


@pytest.mark.parametrize(
    "opening",
    [
        'extern "C" {',
        "namespace a::b {",
        "class [[nodiscard]] A : public B<int(int)> {",
        "struct alignas(64) A {",
        "struct __attribute__((packed)) A final {",
        "template <typename T, typename = decltype(F())>\nstruct A : ::b::C {",
    ],
)
def test_scopes_hold_functions(opening: str) -> None:
    assert [b.head for b in rules.cc_functions(f"{opening}\n void F() {{}}\n}};")] == ["void F()"]
