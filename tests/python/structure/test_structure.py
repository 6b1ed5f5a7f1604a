"""The rules of the sources: who may include and import whom, purity, sizes.

`make lint` runs this file, too.
"""

from __future__ import annotations

import re
import subprocess
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
import python_rules
import source_rules as rules
from python_rules import ON_TOP

ROOT = Path(__file__).resolve().parents[3]
# Beyond these a test fails; beyond the lower ones it warns.
MAX_FILE_LINES, MANY_FILE_LINES = 600, 400
MAX_FUNCTION_LINES, MANY_FUNCTION_LINES = 80, 60
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


# What the libraries above the runtime implement for it.
UPWARD = {"Steps", "Programs"}
KEPT_FUNCTION = re.compile(r"void Set\w+\([^)]*(?:\(\*|std::function)|py::function\s*\*")


def test_the_runtime_calls_what_is_above_it_through_two_interfaces() -> None:
    headers = sources("ops/runtime/process/", ".h")
    above = {**sources("ops/kernels/", ".cc", ".h"), **sources("ops/xla/", ".cc", ".h")}
    above.update(sources("ops/bindings/", ".cc", ".h"))
    known = set(
        re.findall(r"^(?:class|struct) (?:TFRING_EXPORT )?(\w+)", "".join(headers.values()), re.M)
    )
    bases = re.findall(r"\bclass \w+(?: final)? : public (\w+)", "".join(above.values()))
    assert known & set(bases) == UPWARD
    kept = [name for name, text in {**headers, **above}.items() if KEPT_FUNCTION.search(text)]
    assert kept == [], "these keep a function that the runtime calls upwards"


def test_imports_follow_the_arrows() -> None:
    files = sources("tfring/", ".py", ".pyi")
    check_each(files, lambda name, _: python_rules.import_errors(name, files))
    check_each(files, python_rules.import_by_name_errors)


def test_packages_on_top_import_public_names_only() -> None:
    files = sources("tfring/", ".py", ".pyi")
    on_top = {name: files[name] for name in files if python_rules.package_of(name) in ON_TOP}
    assert {python_rules.package_of(name) for name in on_top} == set(ON_TOP)
    check_each(on_top, lambda name, _: python_rules.private_import_errors(name, files))


def test_what_integration_lists_is_used() -> None:
    files = sources("tfring/", ".py", ".pyi")
    used = {
        one.name
        for name, text in files.items()
        if python_rules.package_of(name) in ON_TOP
        for one in python_rules.imports_of(name, text)
        if one.module == "tfring.integration"
    }
    assert python_rules.public_names("tfring.integration", files) == used


def test_the_library_itself_pickles_nothing() -> None:
    check_each(sources("tfring/", ".py", ".pyi"), python_rules.pickle_errors)


def test_no_arrow_is_unused() -> None:
    files = sources("tfring/", ".py", ".pyi")  # but what packages make public is no arrow
    files = {name: text for name, text in files.items() if not name.endswith("__init__.pyi")}
    used = python_rules.used_arrows(files)
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


# Sizes.


class Size(NamedTuple):
    """How long a file or a function is."""

    what: str
    lines: int


def file_size(name: str, text: str) -> list[Size]:
    return [Size(name, len(text.splitlines()))]


def function_sizes(name: str, text: str) -> list[Size]:
    functions = rules.py_functions(text) if name.endswith(".py") else rules.cc_functions(text)
    return [Size(f"{name}:{block.first}: {block.head[-60:]}", block.lines) for block in functions]


def check_sizes(sizes: Iterable[Size], most: int, many: int) -> None:
    long = sorted((size for size in sizes if size.lines > many), key=lambda size: -size.lines)
    for what, lines in long:
        if lines <= most:
            warnings.warn(f"{what} has {lines} lines; {most} is the limit", stacklevel=2)
    expect_none(f"{what} has {lines} lines" for what, lines in long if lines > most)


def test_files_are_short() -> None:
    files = sources("", ".cc", ".h", ".py", ".pyi", ".sh")
    sizes = [size for name, text in files.items() for size in file_size(name, text)]
    check_sizes(sizes, MAX_FILE_LINES, MANY_FILE_LINES)


def test_functions_are_short() -> None:
    files = sources("", ".cc", ".h", ".py")
    sizes = [size for name, text in files.items() for size in function_sizes(name, text)]
    check_sizes(sizes, MAX_FUNCTION_LINES, MANY_FUNCTION_LINES)


# Paths.


def test_no_machine_paths() -> None:
    def check(name: str, text: str) -> list[str]:
        return [f"{name}: {path}" for path in MACHINE_PATH.findall(text)]

    suffixes = (".cc", ".h", ".py", ".sh", ".md", ".txt", ".cmake", ".toml", ".bzl", ".bazel")
    files = sources("", *suffixes, "Makefile")
    del files["tests/python/structure/test_structure.py"]
    check_each(files, check)


# What the checks above look for is found where it is planted; test_scanners.py has the rest.


def test_sizes_are_measured() -> None:
    assert file_size("a.sh", "\n\nlast") == [Size("a.sh", 3)]
    body = "  a();\n" * 78
    assert function_sizes("ops/a.cc", f"void F() {{\n{body}}}\n")[0].lines == 80
    assert function_sizes("a.py", f"def f():\n{body.replace(';', '')}")[0].lines == 79


def test_what_is_too_long_fails_and_what_is_long_warns() -> None:
    check_sizes([Size("a", 10)], most=20, many=10)
    with pytest.warns(UserWarning, match="a has 11 lines; 20 is the limit"):
        check_sizes([Size("a", 11)], most=20, many=10)
    with pytest.raises(pytest.fail.Exception, match=r"^b has 21 lines$"):
        check_sizes([Size("b", 21)], most=20, many=10)


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
