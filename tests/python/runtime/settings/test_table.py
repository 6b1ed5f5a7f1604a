"""The table of settings, and what is made from it."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tfring.launch.cli import parser_of
from tfring.runtime import _native
from tfring.runtime.settings.environment import Settings, native_values
from tfring.runtime.settings.setting import Kind, Reader, Setting, SettingError
from tfring.runtime.settings.table import GROUPS, RUNTIME, SETTINGS

ROOT = Path(__file__).resolve().parents[4]
PAGE = ROOT / "docs/configuration.md"
READ = [setting for setting in SETTINGS.values() if setting.reader is not Reader.OURS]
PUBLIC = [setting for setting in SETTINGS.values() if not setting.internal]
MOST_PUBLIC = 45
# Pages of how tfring works inside, and of what was measured with settings of tests.
FOR_DEVELOPERS = ("performance", "protocol", "algorithms")


@pytest.fixture(scope="module")
def maker() -> Any:
    spec = importlib.util.spec_from_file_location("make_settings", ROOT / "tools/settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_header_of_the_runtime_is_that_of_the_table(maker: Any) -> None:
    assert maker.HEADER.read_text("utf-8") == maker.header(), "run `make settings`"


def test_the_page_of_the_docs_is_that_of_the_table(maker: Any) -> None:
    text = maker.PAGE.read_text("utf-8")
    assert text == maker.page(text), "run `make settings`"


def test_there_are_few_public_settings_and_the_docs_have_each_with_its_values() -> None:
    assert len(PUBLIC) <= MOST_PUBLIC
    rows = dict(
        re.findall(r"^\| `([A-Z_]+)`[^|]*\|([^\n]*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    )
    assert set(rows) == {setting.name for setting in PUBLIC}
    for setting in PUBLIC:
        default, value = (cell.strip() for cell in rows[setting.name].split("|")[:2])
        assert (default, value) == (setting.shown_default, setting.allowed)


def test_internal_settings_have_a_prefix_and_are_in_no_page_for_users() -> None:
    internal = [setting for setting in SETTINGS.values() if setting.internal]
    assert {setting.name for setting in SETTINGS.values() if setting.reader is Reader.OURS} <= {
        setting.name for setting in internal
    }
    assert SETTINGS["PIECE_BYTES"].variable == "TFRING_X_PIECE_BYTES"
    text = parser_of("run").format_help()
    pages = {page.stem: page.read_text("utf-8") for page in PAGE.parent.glob("*.md")}
    of_users = {name: page for name, page in pages.items() if name not in FOR_DEVELOPERS}
    for setting in internal:
        assert setting.option is None or setting.option.names[0] not in text
        assert [name for name, page in of_users.items() if setting.variable in page] == []


def test_no_setting_stands_in_two_groups() -> None:
    assert len(SETTINGS) == sum(len(group.settings) for group in GROUPS)


@pytest.mark.parametrize("setting", READ, ids=lambda setting: setting.name)
def test_the_default_is_a_value(setting: Setting) -> None:
    assert setting.meaning.endswith(".")
    if setting.default is not None:
        assert setting.parse(setting.text_of(setting.default)) == setting.default
    if setting.kind not in (Kind.TEXT, Kind.PATH, Kind.NAMES):  # those may be anything
        with pytest.raises(SettingError, match=f'{setting.variable} is "no such value"'):
            setting.parse("no such value")


@pytest.mark.parametrize("setting", READ, ids=lambda setting: setting.name)
def test_bounds_are_values_and_what_is_below_is_none(setting: Setting) -> None:
    if setting.kind not in (Kind.COUNT, Kind.BYTES, Kind.SECONDS):
        return
    for bound in (setting.low, setting.high):
        assert setting.parse(setting.text_of(bound)) == bound
    for beyond in (setting.low - 1, setting.high + 1):
        with pytest.raises(SettingError, match="from"):
            setting.parse(setting.text_of(beyond))


def test_what_python_reads_is_in_the_table() -> None:
    names = {field.name.upper() for field in dataclasses.fields(Settings)}
    read = {setting.name for setting in READ if setting.reader is Reader.PYTHON}
    elsewhere = {"PODS", "POD_SLOTS", "LIB_DIR"}  # job/environments/kubernetes.py, _native.py
    assert read - names == elsewhere
    assert names - read == {"RUNTIME", "UNKNOWN", "WITHOUT_EFFECT"}


def test_the_runtime_takes_every_setting() -> None:
    core = _native.core
    defaults = {setting.name: setting.shown_default for setting in RUNTIME}
    values = native_values(defaults | {"LOCK_SCHEDULE": "1"})
    assert core.allreduce_prices(["a", "b"], values)
    chosen = {}
    for text in ("auto", "0", "1"):
        values = native_values({"HIERARCHICAL_ALLREDUCE": text, "NETWORK_LATENCY_SECONDS": "1"})
        chosen[text] = core.allreduce_prices(["a", "a", "b", "b"], values)[-1]
    assert "hierarchical" not in chosen["0"].split(";")[0]
    assert "hierarchical" in chosen["1"].split(";")[0]


def test_the_help_says_each_default() -> None:
    actions = parser_of("run")._option_string_actions
    rows = [(setting, setting.option) for setting in PUBLIC if setting.option]
    assert rows
    for setting, option in rows:
        told = actions[option.names[0]].help
        if setting.kind is Kind.FLAG:
            assert f"Default {'on' if setting.default else 'off'}." in told
        elif setting.shown_default and option.scale == 1 and not option.off:
            assert f"Default {setting.shown_default}." in told
    assert "Default 128." in actions["--fusion-threshold-mb"].help
    stalls = SETTINGS["STALL_CHECK_TIME_SECONDS"].shown_default
    assert f"default: yes, after {stalls} s" in actions["--stall-check"].help
