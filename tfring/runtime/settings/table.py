"""All settings of tfring.

Whatever knows settings is made from this table: what reads the environment, the options of `tfring
run`, `tfring doctor`, the runtime's Config (ops/runtime/base/config_table.h) and the tables of
docs/configuration.md. `make settings` writes those two files, and a test compares them.
"""

from __future__ import annotations

from tfring.runtime.settings.python_table import CHECKS, OURS, RECORDS, START
from tfring.runtime.settings.runtime_table import (
    ALGORITHMS,
    LIVENESS,
    LOGS,
    SCHEDULING,
    TRANSPORTS,
)
from tfring.runtime.settings.setting import Reader

GROUPS = (
    SCHEDULING,
    LIVENESS,
    ALGORITHMS,
    TRANSPORTS,
    START,
    CHECKS,
    LOGS,
    RECORDS,
    OURS,
)

SETTINGS = {setting.name: setting for group in GROUPS for setting in group.settings}

RUNTIME = tuple(row for row in SETTINGS.values() if row.reader is Reader.RUNTIME)
"""The settings of the compiled runtime."""
