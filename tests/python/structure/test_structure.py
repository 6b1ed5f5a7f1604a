"""The rules of the sources: who may include and import whom, purity, sizes, retired words.

`make lint` runs this file, too.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import python_rules
import source_rules as rules

ROOT = Path(__file__).resolve().parents[3]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_INTERFACE_METHODS = 8
MAX_FILES = {"tfring": 10}  # in the folder itself
MAX_FILES_IN_PACKAGE = 15
# Words that another one has replaced, by the files where they may not appear.
RETIRED_WORDS = {
    r"ops/.*": r"(?<!time_since_)epoch",  # generation: one life of the runtime
    r".*\.(py|md)": r"\brooms?\b",  # layer
    r"(ops|tests/cc)/.*": r"\b(first_dims|TensorTable|EntryTable|CheckAddress|LineTurn)\b",
    r"tfring/.*": r"\b(tf_library|tf_ops|reduced_record|stand_in|stand_for|bring_up|agreed_sets)\b",
}
# Folders of what is built or installed; an unpacked archive may have them.
OUTPUT = re.compile(r"(build|build-[^/]*|dist|\.venv)/")
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
    return sorted(name for name in found if not OUTPUT.match(name))


def sources(folder: str, *suffixes: str) -> dict[str, str]:
    """The text of each file of a folder with one of the suffixes, by its path."""
    found = {
        name: (ROOT / name).read_text("utf-8")
        for name in listed_files(*suffixes)
        if name.startswith(folder)
    }
    assert found, "no file found: the check would pass on nothing"
    return found


def expect_none(errors: Iterable[str]) -> None:
    """Fails with the errors, one a line, if there are any."""
    if text := "\n".join(errors):
        pytest.fail(text, pytrace=False)


def check_each(files: dict[str, str], check: Callable[[str, str], list[str]]) -> None:
    expect_none(error for name, text in files.items() for error in check(name, text))


# What a file may include or import.


@pytest.mark.parametrize("arrows", [rules.CC_ARROWS, python_rules.ARROWS], ids=["cc", "python"])
def test_arrows_go_down(arrows: dict[str, set[str]]) -> None:
    layers = list(arrows)
    assert not [name for i, name in enumerate(layers) if not arrows[name] <= set(layers[:i])]


def test_includes_follow_the_arrows() -> None:
    check_each(sources("ops/", ".cc", ".h"), rules.include_errors)


def test_protocol_is_pure() -> None:
    expect_none(rules.purity_errors(sources("ops/", ".cc", ".h")))


def test_runtime_has_headers_and_sources_only() -> None:
    names = sources("ops/runtime/", "")
    expect_none(name for name in names if not rules.RUNTIME_FILE.fullmatch(name))


def test_runtime_reads_no_environment() -> None:
    def check(name: str, text: str) -> list[str]:
        # Not fegetenv, which is about arithmetic.
        found = re.search(r"(?<!fe)getenv\(", rules.blank_out(text))
        return [f"{name}: calls getenv"] if found else []

    check_each(sources("ops/runtime/", ".cc", ".h"), check)


def test_imports_follow_the_arrows() -> None:
    files = sources("tfring/", ".py", ".pyi")
    check_each(files, lambda name, _: python_rules.import_errors(name, files))
    check_each(files, python_rules.import_by_name_errors)


def test_the_library_itself_pickles_nothing() -> None:
    check_each(sources("tfring/", ".py", ".pyi"), python_rules.pickle_errors)


def test_no_arrow_is_unused() -> None:
    used = python_rules.used_arrows(sources("tfring/", ".py"))
    expect_none(
        f"{name} imports nothing from {other}: take the arrow out"
        for name, below in python_rules.ARROWS.items()
        for other in sorted(below - used[name])
    )


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = python_rules.import_graph(sources("tfring/", ".py"), all_imports=True)
    expect_none([" -> ".join(python_rules.circle(graph))])


def test_init_and_the_launcher_load_no_tensorflow() -> None:
    expect_none(python_rules.tensorflow_errors(sources("tfring/", ".py")))


# Sizes and words.


def long_file(name: str, text: str) -> list[str]:
    lines = len(text.splitlines())
    return [f"{name}: {lines} lines"] if lines > MAX_FILE_LINES else []


def long_functions(name: str, text: str) -> list[str]:
    functions = rules.py_functions(text) if name.endswith(".py") else rules.cc_functions(text)
    return [
        f"{name}:{block.first}: {block.head[-60:]} has {block.lines} lines"
        for block in functions
        if block.lines > MAX_FUNCTION_LINES
    ]


def large_interfaces(name: str, text: str) -> list[str]:
    return [
        f"{name}: {interface} has {methods} methods"
        for interface, methods in rules.interface_sizes(text).items()
        if methods > MAX_INTERFACE_METHODS
    ]


def full_packages(names: list[str]) -> list[str]:
    """The Python packages of tfring/ that have too many files; no other folder has a limit."""
    files = Counter(name.rpartition("/")[0] for name in names)
    return [
        f"{folder}: {count} files"
        for folder, count in files.items()
        if count > MAX_FILES.get(folder, MAX_FILES_IN_PACKAGE)
    ]


def retired_words(name: str, text: str) -> list[str]:
    return [
        f"{name}: {word}"
        for files, pattern in RETIRED_WORDS.items()
        if re.fullmatch(files, name)
        for word in re.findall(pattern, text, re.IGNORECASE)
    ]


def test_files_are_short() -> None:
    check_each(sources("", ".cc", ".h", ".py", ".pyi", ".sh"), long_file)


def test_functions_are_short() -> None:
    check_each(sources("", ".cc", ".h", ".py"), long_functions)


def test_interfaces_are_small() -> None:
    check_each(sources("ops/", ".h"), large_interfaces)


def test_packages_are_small() -> None:
    expect_none(full_packages([name for name in listed_files("") if name.startswith("tfring/")]))


def test_retired_words_do_not_return() -> None:
    files = sources("", ".cc", ".h", ".py", ".md")
    del files["tests/python/structure/test_structure.py"]
    check_each(files, retired_words)


def test_no_machine_paths() -> None:
    def check(name: str, text: str) -> list[str]:
        return [f"{name}: {path}" for path in MACHINE_PATH.findall(text)]

    suffixes = (".cc", ".h", ".py", ".sh", ".md", ".txt", ".cmake", ".toml", ".bzl", ".bazel")
    files = sources("", *suffixes, "Makefile")
    del files["tests/python/structure/test_structure.py"]
    check_each(files, check)


# What the checks above look for is found where it is planted; test_scanners.py has the rest.


def test_what_is_too_long_is_found() -> None:
    assert long_file("a.sh", "\n" * (MAX_FILE_LINES + 1))
    assert long_file("a.sh", "\n" * MAX_FILE_LINES + "last")
    assert not long_file("a.sh", "\n" * MAX_FILE_LINES)
    body = "  a();\n" * MAX_FUNCTION_LINES
    assert long_functions("ops/a.cc", f"void F() {{\n{body}}}\n")
    assert long_functions("a.py", f"def f():\n{body.replace(';', '')}")
    methods = "virtual void F() = 0;\n" * MAX_INTERFACE_METHODS
    assert not large_interfaces("a.h", f"class A {{\n{methods}}};")
    assert large_interfaces("a.h", f"class A {{\n{methods} virtual int G() const = 0;\n}};")


@pytest.mark.parametrize(("folder", "most"), [("tfring", 10), ("tfring/keras/callbacks", 15)])
def test_a_full_package_is_found(folder: str, most: int) -> None:
    names = [f"{folder}/x{i}.py" for i in range(most)]
    assert full_packages(names) == []
    assert full_packages([*names, f"{folder}/py.typed"]) == [f"{folder}: {most + 1} files"]


def test_a_retired_word_is_found() -> None:
    assert retired_words("ops/runtime/a.h", "uint64_t epoch_ = time_since_epoch();") == [
        "ops/runtime/a.h: epoch"
    ]
    assert retired_words("docs/a.md", "the rooms") == ["docs/a.md: rooms"]
    assert retired_words("examples/a.py", "epochs=3") == []


def test_output_folders_are_recognised() -> None:
    names = [
        "build/a.py",
        "build-asan/a.cc",
        "dist/a.py",
        "distribute.py",
        "build_x.py",
        "a/dist/b",
    ]
    assert [name for name in names if OUTPUT.match(name)] == names[:3]


def test_machine_paths_are_recognised() -> None:
    assert MACHINE_PATH.findall("cd /home/someone/project") == ["/home/someone"]
    work = "work"  # joined below, so that this file itself holds no such path
    others = f"/usr/bin/env $ROOT/home/x ${{A}}/{work}/y https://x.org/home/z"
    assert not MACHINE_PATH.findall(others)


def test_no_module_hides_a_public_name() -> None:
    """Who imports such a module first makes `hvd.name` that module instead of the function."""
    hidden = [
        f"{stub}: {name}"
        for stub in listed_files("__init__.pyi")
        for name in re.findall(
            r"^from tfring\S* import (\w+) as \1$", (ROOT / stub).read_text(), re.M
        )
        if (ROOT / stub).with_name(f"{name}.py").exists()
    ]
    assert not hidden
