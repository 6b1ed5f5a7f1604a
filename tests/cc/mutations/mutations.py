"""Mistakes that tests have to find, and what builds them into copies of the sources.

    mutations.py sources            the sources that have mistakes, one a line
    mutations.py names              the mistakes, one a line
    mutations.py write FOLDER       writes the sources with all mistakes, each behind MUTATED(name)
    mutations.py run NAME FOLDER    runs the test that has to find the mistake; FOLDER has programs

A mistake is exact text of a source and what takes its place. `write` fails unless the text occurs
exactly once. TFRING_MUTATION names the mistake that a program makes; without it there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import backend
import protocol
import threads

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "ops"
# The longest that a test takes which does not find the mistake because it hangs.
LIMIT_SECONDS = 60
# The exit status of a test program that has no such case, and of a simulator with a wrong option.
NOT_RUN = 2
MUTATIONS = (*backend.MUTATIONS, *protocol.MUTATIONS, *threads.MUTATIONS)


def _mutated(text: str, file: str) -> str:
    """`text` of `file` with the mistakes of all mutations, each behind its name."""
    places: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for mutation in MUTATIONS:
        for edit in mutation.edits:
            if edit.file == file:
                place = places.setdefault((edit.before, edit.right), [])
                place.append((mutation.name, edit.wrong))
    mutated = text
    for (before, right), mistakes in places.items():
        if (times := text.count(before + right)) != 1:
            raise SystemExit(f"{before + right!r} occurs {times} times in {file}, not once")
        changed = right
        for name, wrong in mistakes:
            if right.endswith(";"):
                changed = f"{{ if (MUTATED({name})) {{ {wrong} }} else {{ {changed} }} }}"
            else:
                changed = f"(MUTATED({name}) ? ({wrong}) : ({changed}))"
        mutated = mutated.replace(before + right, before + changed)
    return f'#include "tests/cc/mutations/mutated.h"\n{mutated}'


def _sources() -> list[str]:
    return sorted({edit.file for mutation in MUTATIONS for edit in mutation.edits})


def _write(folder: Path) -> None:
    for file in _sources():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        text = _mutated((SOURCES / file).read_text("utf-8"), file)
        (folder / file).write_text(text, "utf-8")


def _run(name: str, folder: Path) -> int:
    mutation = next(each for each in MUTATIONS if each.name == name)
    test = mutation.test
    environment = dict(os.environ)
    if mutation.edits:
        environment["TFRING_MUTATION"] = name
    passes = not mutation.edits and not test.finds
    try:
        process = subprocess.run(
            [folder / test.program, *test.arguments],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"no end after {LIMIT_SECONDS} s")
        return 0 if not passes and not test.finds else 1
    output = process.stdout + process.stderr
    if passes:
        found = process.returncode == 0
    elif test.finds:
        found = process.returncode == 1 and test.finds in output
    else:
        found = process.returncode not in (0, NOT_RUN)
    if not found:
        print(output[-4000:])
        print(f"exit status {process.returncode}", f"expected: {test.finds or 'any failure'!r}")
    return 0 if found else 1


def _main(arguments: list[str]) -> Iterator[str] | int:
    match arguments:
        case ["sources"]:
            return iter(_sources())
        case ["names"]:
            return (mutation.name for mutation in MUTATIONS)
        case ["write", folder]:
            _write(Path(folder))
            return 0
        case ["run", name, folder]:
            return _run(name, Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    done = _main(sys.argv[1:])
    if isinstance(done, int):
        raise SystemExit(done)
    print("\n".join(done))
