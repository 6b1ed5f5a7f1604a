"""The layout that Python reads is the one that the runtime writes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tfring.observe.recorder import layout

ROOT = Path(__file__).resolve().parents[4]
RUNTIME = ROOT / "ops/runtime"
RECORD = "recorder/record_layout.h"
SIZES = {"char": 1, "uint8_t": 1, "int32_t": 4, "uint32_t": 4}
SIZES |= dict.fromkeys(("int64_t", "uint64_t", "double"), 8)


def source(name: str) -> str:
    text = re.sub(r"//.*", "", (RUNTIME / name).read_text(encoding="utf-8"))
    return text.replace("PlanMarks marks;", body_of(text_of_marks(), "struct PlanMarks"))


def text_of_marks() -> str:
    return re.sub(r"//.*", "", (RUNTIME / "interfaces/plan_marks.h").read_text(encoding="utf-8"))


def body_of(text: str, head: str) -> str:
    found = re.search(rf"{head}\b[^{{;]*{{(.*?)\n}};", text, re.S)
    assert found, f"{head} is not in the header"
    return found[1]


def members(header: str, struct: str) -> dict[str, tuple[int, int]]:
    """Offset and size of the fields of a struct of a header, as a compiler lays them out."""
    found, at = {}, 0
    body = re.sub(r"static constexpr[^;]*;", "", body_of(source(header), struct))
    for kind, names in re.findall(r"(?:std::atomic<)?(\w+)>? +([^;]+);", body):
        for name in names.split(","):
            field = re.match(r"\s*(\w+)(?:\[(.+?)\])?", name)
            assert field, name
            count = eval(field[2]) if field[2] else 1
            at = -(-at // SIZES[kind]) * SIZES[kind]
            found[field[1]] = (at, SIZES[kind] * count)
            at += SIZES[kind] * count
    found["whole struct"] = (-(-at // 8) * 8, 0)
    return found


@pytest.mark.parametrize(
    ("header", "struct", "dtype"),
    [
        (RECORD, "struct RecordHeader", layout.HEADER),
        (RECORD, "struct CallRecord", layout.CALL),
        (RECORD, "struct PlanRecord", layout.PLAN),
        (RECORD, "struct EventRecord", layout.EVENT),
        (RECORD, "struct RankRecord", layout.RANK),
    ],
)
def test_structs_have_the_same_fields(header: str, struct: str, dtype: np.dtype[np.void]) -> None:
    written = members(header, struct)
    assert written.pop("whole struct")[0] == dtype.itemsize
    fields = dtype.fields or {}
    read = {name: (field[1], field[0].itemsize) for name, field in fields.items()}
    for side in (written, read):
        for name in [name for name in side if name.startswith("unused")]:
            del side[name]
    assert read == written


def constants(text: str) -> dict[str, int]:
    """Of "kStepFailed = 6, kMark = 8" {"STEP_FAILED": 6, "MARK": 8}; without numbers they count."""
    found: dict[str, int] = {}
    for name, number in re.findall(r"\bk([A-Z]\w*)(?: = (\d+))?", text):
        spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
        found[spelled] = int(number) if number else len(found)
    return found


def test_enums_have_the_same_values() -> None:
    text = source(RECORD)
    states = re.search(r"enum class RankState.*?};", text, re.S)
    flags = re.search(r"static constexpr uint8_t (.*?);", text, re.S)
    assert states and flags
    assert constants(states[0]) == {one.name: one.value for one in layout.RankState}
    assert constants(flags[1]) == {one.name: one.value for one in layout.CallFlags}
    events = body_of(text, "enum class EventType")
    assert constants(events) == {one.name: one.value for one in layout.EventType}
    number = re.search(r"kRecordVersion = (\d+)", text)
    assert number and int(number[1]) == layout.VERSION
    magic = re.search(r"kRecordMagic\[8\] = {(.*?)}", text)
    assert magic and "".join(re.findall(r"'(.)'", magic[1])).encode() == layout.MAGIC


def test_numbers_have_the_same_names() -> None:
    base = RUNTIME / "base"
    kinds = re.findall(r'^    {"(.+?)",', (base / "collective_kind.cc").read_text(), re.M)
    assert tuple(kinds) == layout.KINDS
    types = (base / "types.cc").read_text()
    dtypes = re.findall(r'{"(\w+)", \d+, \w+}', types.partition("kReduceOps")[0])
    assert tuple(dtypes) == layout.DTYPES
    ops = re.search(r"kReduceOps\[\w+\] = {(.*?)}", types, re.S)
    assert ops and tuple(re.findall(r'"(\w+)"', ops[1])) == layout.REDUCE_OPS
    codes = re.search(r"enum class StatusCode.*?};", (base / "status.h").read_text(), re.S)
    assert codes
    named = {int(number): name for name, number in re.findall(r"k(\w+) = (\d+)", codes[0])}
    assert named == {**layout.STATUSES, 0: "Ok"}
