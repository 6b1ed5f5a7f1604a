"""Generates the runtime's Config and a part of the docs from the table of settings.

`make settings` runs it after a change to tfring/runtime/settings. A test compares the files with
the table.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfring.runtime.settings.setting import Kind, Setting  # noqa: E402
from tfring.runtime.settings.table import GROUPS, RUNTIME  # noqa: E402

HEADER = ROOT / "ops/runtime/base/config_table.h"
PAGE = ROOT / "docs/configuration.md"
_BEGIN = "<!-- made by `make settings`: begin -->\n"
_END = "<!-- made by `make settings`: end -->\n"
_COLUMNS = 100


def header() -> str:
    """Returns the C++ header with the struct Config and with its fields by name."""
    fields = "\n".join(line for setting in RUNTIME for line in _field(setting))
    visits = "\n".join(f"  {_visit(setting)}" for setting in RUNTIME)
    return f"""\
#ifndef TFRING_OPS_RUNTIME_BASE_CONFIG_TABLE_H_
#define TFRING_OPS_RUNTIME_BASE_CONFIG_TABLE_H_

// Made from tfring/runtime/settings by `make settings`: change the table there.

#include <cstdint>
#include <string>
#include <vector>

#include "ops/runtime/base/setting_types.h"
#include "ops/runtime/base/types.h"

namespace tfring {{

// Every setting of the runtime, with its default. A value type, constant after init.
struct Config {{
{fields}

  // The names of the settings that were set.
  std::vector<std::string> fixed = {{}};
}};

// Calls `visit` with the name of each setting and with its field. A choice has a third argument:
// the values of the field, in the order of the table.
// clang-format off
template <typename Visit>
void VisitSettings(Config* config, const Visit& visit) {{
{visits}
}}
// clang-format on

}}  // namespace tfring

#endif  // TFRING_OPS_RUNTIME_BASE_CONFIG_TABLE_H_
"""


def page(text: str) -> str:
    """Returns the page of the docs with its tables replaced."""
    before, rest = text.split(_BEGIN)
    after = rest.split(_END)[1]
    return before + _BEGIN + "\n".join(_tables()) + _END + after


def _member(setting: Setting) -> str:
    return setting.member or setting.name.lower()


def _constants(setting: Setting) -> list[str]:
    """Returns the C++ values of a choice, with their type."""
    scope, *names = setting.native.split()
    return [f"{scope}::{name}" if scope[0].isupper() else name for name in names]


def _field(setting: Setting) -> Iterator[str]:
    if setting.default is None:
        raise ValueError(f"{setting.name}: a setting of the runtime needs a default")
    width = _COLUMNS - len("  // ")
    yield from (f"  // {line}" for line in textwrap.wrap(setting.plain_meaning, width))
    cpp, value = "int64_t", str(setting.default)
    if setting.kind is Kind.FLAG:
        cpp, value = "bool", str(setting.default).lower()
    elif setting.kind is Kind.PATH:
        cpp, value = "std::string", f'"{setting.default}"'
    elif setting.kind is Kind.SECONDS:
        cpp, value = "Duration", str(setting.native_value(setting.shown_default))
    elif setting.kind is Kind.CHOICE:
        cpp = setting.native.split()[0]
        value = _constants(setting)[setting.choices.index(str(setting.default))]
    yield f"  {cpp} {_member(setting)} = {value};"


def _visit(setting: Setting) -> str:
    field = f'"{setting.name}", &config->{_member(setting)}'
    if setting.kind is not Kind.CHOICE:
        return f"visit({field});"
    cpp = setting.native.split()[0]
    return f"visit({field}, std::vector<{cpp}>{{{', '.join(_constants(setting))}}});"


def _tables() -> Iterator[str]:
    for group in GROUPS:
        rows = [_row(setting) for setting in group.settings if not setting.internal]
        if rows:
            yield f"### {group.title}\n"
            yield "| `TFRING_...` | default | value | meaning |\n|---|---|---|---|"
            yield from rows
            yield ""


def _row(setting: Setting) -> str:
    star = " *" if setting.horovod == f"HOROVOD_{setting.name}" else ""
    other = f" (`{setting.horovod}`)" if setting.horovod and not star else ""
    name = f"`{setting.name}`{star}{other}"
    default = f" {setting.shown_default}" if setting.shown_default else ""
    return f"| {name} |{default} | {setting.allowed} | {setting.meaning} |"


def main() -> int:
    HEADER.write_text(header(), encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
