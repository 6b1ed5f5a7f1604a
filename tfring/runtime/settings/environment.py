"""Settings from the environment: ``TFRING_X``, or Horovod's name for the same.

The compiled runtime never reads the environment: it gets its settings from here.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from tfring.runtime.settings import horovod
from tfring.runtime.settings.setting import OFF, Reader, SettingError, Value
from tfring.runtime.settings.table import RUNTIME, SETTINGS

DYNAMIC = "DYNAMIC"
_DISABLES_STALL_CHECK = "HOROVOD_STALL_CHECK_DISABLE"


def _default(name: str) -> Any:
    return SETTINGS[name].default


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the environment asks for. Most fields have the name of their row in the table.

    Attributes:
        runtime: The settings of the compiled runtime that are set, by name without prefix. Equal
            values have equal texts.
        unknown: A warning for each ``TFRING_X`` that tfring does not know.
        without_effect: Warnings about ``HOROVOD_X`` that ask for what tfring does not have.
    """

    runtime: dict[str, str] = dataclasses.field(default_factory=dict)
    interface: tuple[str, ...] = _default("INTERFACE")
    start_timeout: float = _default("START_TIMEOUT")
    mesh_limit: int = _default("MESH_LIMIT")
    rendezvous_addr: str | None = None
    rendezvous_port: int | None = None
    secret: str | None = dataclasses.field(default=None, repr=False)
    secret_file: str | None = None
    insecure: bool = _default("INSECURE")
    bind_addr: str | None = None
    advertise_addr: str | None = None
    port_range: str | None = None
    job_id: str | None = None
    stopped_exit_code: int = _default("STOPPED_EXIT_CODE")
    stop_timeout: float | None = None
    commit_copies: str = _default("COMMIT_COPIES")
    divergence_guard: bool = _default("DIVERGENCE_GUARD")
    check_start: bool = _default("CHECK_START")
    enable_async_completion: bool = _default("ENABLE_ASYNC_COMPLETION")
    traceback: str = _default("TRACEBACK")
    stacks: bool = _default("STACKS")
    record: bool = _default("RECORD")
    record_dir: str | None = None
    metrics_port: int | None = None
    metrics_addr: str = _default("METRICS_ADDR")
    metrics_token_file: str | None = None
    timeline: str | None = None
    timeline_megabytes: int = _default("TIMELINE_MEGABYTES")
    unknown: tuple[str, ...] = ()
    without_effect: tuple[str, ...] = ()


_NOT_ROWS = ("runtime", "unknown", "without_effect")
_FIELDS = tuple(f.name for f in dataclasses.fields(Settings) if f.name not in _NOT_ROWS)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Reads every setting from the environment. An empty variable counts as not set.

    Args:
        environ: The variables, usually ``os.environ``.

    Raises:
        SettingError: A setting has an impossible value, or two contradict each other.
    """
    values = values_of(environ)
    runtime = {row.name: row.text_of(values[row.name]) for row in RUNTIME if row.name in values}
    _refuse_contradictions(runtime)
    given: dict[str, Any] = {
        name: values[name.upper()] for name in _FIELDS if name.upper() in values
    }
    if str(given.get("timeline")).upper() == DYNAMIC:  # the program starts it
        del given["timeline"]
    return Settings(
        runtime=runtime,
        unknown=tuple(_unknown_warnings(environ)),
        without_effect=tuple(horovod.warnings_of(environ)),
        **given,
    )


def values_of(environ: Mapping[str, str]) -> dict[str, Value]:
    """Returns the settings that are set, by name without prefix.

    Args:
        environ: The variables.

    Raises:
        SettingError: One has an impossible value.
    """
    values: dict[str, Value] = {}
    for setting in SETTINGS.values():
        if setting.reader is Reader.OURS:
            continue
        variables = [name for name in (setting.variable, setting.horovod) if environ.get(name)]
        if variables:
            values[setting.name] = setting.parse(environ[variables[0]], variables[0])
    # As in Horovod, this one wins over the other variable of Horovod.
    disabled = str(environ.get(_DISABLES_STALL_CHECK) or "0").lower() not in OFF
    if disabled and not environ.get("TFRING_STALL_CHECK_TIME_SECONDS"):
        values["STALL_CHECK_TIME_SECONDS"] = 0
    return values


def native_values(runtime: Mapping[str, str]) -> dict[str, int | str]:
    """Returns what the compiled runtime gets: for each setting a number, an index or a path.

    Args:
        runtime: The settings of the runtime that are set, by name without prefix.

    Raises:
        SettingError: A value is impossible.
    """
    values = {name: SETTINGS[name].native_value(text) for name, text in runtime.items()}
    # As in Horovod: without the check nothing ends because of a stall, unless that is asked for.
    if values.get("STALL_CHECK_TIME_SECONDS") == 0:
        values.setdefault("STALL_SHUTDOWN_TIME_SECONDS", 0)
    return values


def warning_seconds(runtime: Mapping[str, str]) -> float:
    """Returns the seconds between two warnings of rank 0 about one stall; 0 if it never warns.

    Args:
        runtime: The settings of the runtime that are set, by name without prefix.
    """
    name = "STALL_CHECK_TIME_SECONDS"
    seconds: Any = SETTINGS[name].parse(runtime[name]) if name in runtime else _default(name)
    return float(seconds)


def _refuse_contradictions(runtime: Mapping[str, str]) -> None:
    def value(name: str) -> Any:
        return SETTINGS[name].parse(runtime[name]) if name in runtime else _default(name)

    interval, timeout = value("HEARTBEAT_SECONDS"), value("HEARTBEAT_TIMEOUT_SECONDS")
    if timeout < 3 * interval:
        raise SettingError(
            f"TFRING_HEARTBEAT_TIMEOUT_SECONDS is {timeout:g} and TFRING_HEARTBEAT_SECONDS is "
            f"{interval:g}: make the timeout at least three times as long, or healthy ranks would "
            "count as lost"
        )
    if value("CPU_OPERATIONS") == "shm" and not value("SHARED_MEMORY"):
        raise SettingError(
            "TFRING_CPU_OPERATIONS is shm and TFRING_X_SHARED_MEMORY is 0: unset one of the two"
        )


def _unknown_warnings(environ: Mapping[str, str]) -> list[str]:
    known = {setting.variable for setting in SETTINGS.values()}
    warnings = []
    for name in sorted(environ):
        if not name.startswith("TFRING_") or name.startswith("TFRING_TEST_") or name in known:
            continue
        # Without the prefix, which all have in common.
        own = name.removeprefix("TFRING_").removeprefix("X_")
        near = difflib.get_close_matches(own, SETTINGS, n=3, cutoff=0.7)
        variables = " or ".join(SETTINGS[one].variable for one in near)
        hint = f"did you mean {variables}?" if near else "`tfring help configuration` lists them"
        warnings.append(f"the variable {name} is unknown and has no effect: {hint}")
    return warnings
