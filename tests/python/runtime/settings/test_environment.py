"""Settings from the environment."""

from __future__ import annotations

import pytest

from tfring.runtime.settings.environment import native_values, read_settings
from tfring.runtime.settings.setting import SettingError
from tfring.runtime.settings.table import SETTINGS


def test_own_name_wins_over_horovods():
    settings = read_settings({"HOROVOD_FUSION_THRESHOLD": "1", "TFRING_FUSION_THRESHOLD": "2"})
    assert settings.runtime == {"FUSION_THRESHOLD": "2"}
    assert read_settings({"HOROVOD_FUSION_THRESHOLD": "1"}).runtime == {"FUSION_THRESHOLD": "1"}


def test_horovods_names_for_the_start():
    settings = read_settings({"HOROVOD_GLOO_IFACE": "eth0,eth1", "HOROVOD_START_TIMEOUT": "7"})
    assert settings.interface == ("eth0", "eth1")
    assert settings.start_timeout == 7


def test_job_id():
    """Tells jobs apart: test_meeting.py."""
    assert read_settings({"TFRING_JOB_ID": "a"}).job_id == "a"
    assert not read_settings({}).job_id


@pytest.mark.parametrize("value,expected", [("1", {"STALL_CHECK_TIME_SECONDS": "0"}), ("0", {})])
def test_stall_check_disable(value, expected):
    assert read_settings({"HOROVOD_STALL_CHECK_DISABLE": value}).runtime == expected


def test_who_wins_when_horovods_check_is_disabled():
    disabled = {"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "60"}
    name = "STALL_CHECK_TIME_SECONDS"
    assert read_settings(disabled).runtime == {name: "0"}
    assert read_settings({**disabled, f"TFRING_{name}": "7"}).runtime == {name: "7"}
    assert read_settings({"HOROVOD_STALL_CHECK_DISABLE": "off"}).runtime == {}


def test_settings_of_horovods_without_effect_say_so_once():
    environ = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "20",
        "HOROVOD_ELASTIC": "1",
        "HOROVOD_CYCLE_TIME": "5",
        "HOROVOD_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_HIERARCHICAL_ALLGATHER": "1",
        "HOROVOD_TORUS_ALLREDUCE": "0",  # asks for nothing
        "HOROVOD_BATCH_D2D_MEMCOPIES": "",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_FUSION_THRESHOLD": "1",
        "HOROVOD_GLOO_IFACE": "eth0",
        "HOROVOD_SPARK_START_TIMEOUT": "5",  # read by tfring.spark
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "1",
        "HOROVOD_WITH_TENSORFLOW": "1",  # of Horovod's build
    }
    settings = read_settings(environ)
    assert settings.unknown == ()
    assert settings.runtime["HIERARCHICAL_ALLREDUCE"] == "1"
    warnings = list(settings.without_effect)
    begins = [warning.partition(" no effect")[0] for warning in warnings]
    assert begins == [
        "HOROVOD_AUTOTUNE, HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES have",
        "HOROVOD_CYCLE_TIME has",
        "HOROVOD_ELASTIC has",
        "HOROVOD_HIERARCHICAL_ALLGATHER has",
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX has",
    ]


def test_timeline():
    assert read_settings({"HOROVOD_TIMELINE": "a.json"}).timeline == "a.json"


def test_unknown_name_is_not_handed_on_but_named_with_its_neighbours():
    settings = read_settings({"TFRING_FUSION_TRESHOLD": "1", "TFRING_XYZZY": "1"})
    assert settings.runtime == {}
    near, far = settings.unknown
    assert "TFRING_FUSION_TRESHOLD" in near and "TFRING_FUSION_THRESHOLD" in near
    assert "TFRING_XYZZY" in far and "did you mean" not in far


@pytest.mark.parametrize(
    "name,value",
    [
        ("TFRING_START_TIMEOUT", "soon"),
        ("TFRING_START_TIMEOUT", "0"),
        ("TFRING_START_TIMEOUT", "nan"),
        ("TFRING_X_MESH_LIMIT", "1"),
        ("TFRING_RENDEZVOUS_PORT", "70000"),
        ("TFRING_FUSION_THRESHOLD", "64MB"),
        ("TFRING_FUSION_THRESHOLD", "-1"),
        ("TFRING_STALL_CHECK_TIME_SECONDS", "nan"),
        ("TFRING_CACHE_CAPACITY", "99999999999999999999"),
        ("TFRING_X_MAX_PLANS_IN_FLIGHT", "0"),
        ("TFRING_DETERMINISTIC", "maybe"),
        ("TFRING_LOG_LEVEL", "7"),
        ("HOROVOD_LOG_LEVEL", "off"),
        ("TFRING_FUSION_THRESHOLD", "1_000"),
        ("TFRING_PODS", "-3"),
        ("TFRING_LOG_FORMAT", "xml"),
        ("TFRING_METRICS_ADDR", "localhost"),
    ],
)
def test_impossible_value_names_variable_and_value(name, value):
    with pytest.raises(SettingError, match=f'{name} is "{value}"'):
        read_settings({name: value})


@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        ("DISABLE_GROUP_FUSION", "True", "1"),
        ("CPU_OPERATIONS", "MPI", "mpi"),
        ("CPU_OPERATIONS", "GLOO", "auto"),  # Horovod's
        ("GPU_OPERATIONS", "Gloo", "host"),
        ("HIERARCHICAL_ALLREDUCE", "yes", "1"),
        ("STALL_CHECK_TIME_SECONDS", "1e-13", "0"),
        ("CHECK_VALUES", "on", "warn"),
        ("CHECK_VALUES", "no", "0"),
        ("LOG_LEVEL", "1", "debug"),
        ("LOG_LEVEL", "FATAL", "error"),
        ("NETWORK_LATENCY_SECONDS", "2e-7", "0.0000002"),
        ("HEARTBEAT_TIMEOUT_SECONDS", "60.0", "60"),
        ("NCCL_LIBRARY", "/opt/NCCL.so", "/opt/NCCL.so"),
    ],
)
def test_equal_values_have_equal_texts(name, text, same):
    assert read_settings({SETTINGS[name].variable: text}).runtime == {name: same}
    assert read_settings({SETTINGS[name].variable: same}).runtime == {name: same}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"HEARTBEAT_TIMEOUT_SECONDS": "14.9"}, "HEARTBEAT_SECONDS is 5"),
        ({"CPU_OPERATIONS": "shm", "SHARED_MEMORY": "0"}, "TFRING_X_SHARED_MEMORY is 0"),
    ],
)
def test_settings_that_contradict_each_other(values, words):
    with pytest.raises(SettingError, match=words):
        read_settings({SETTINGS[name].variable: value for name, value in values.items()})


def test_heartbeats_may_be_off():
    runtime = {"HEARTBEAT_SECONDS": "0", "HEARTBEAT_TIMEOUT_SECONDS": "0"}
    assert read_settings({f"TFRING_{n}": v for n, v in runtime.items()}).runtime == runtime


def test_an_empty_variable_is_not_set():
    assert read_settings({"TFRING_TIMELINE": "", "HOROVOD_TIMELINE": "x"}).timeline == "x"
    assert read_settings({"TFRING_FUSION_THRESHOLD": "", "TFRING_START_TIMEOUT": ""}) == (
        read_settings({})
    )


def test_stalls_end_the_job_by_default_unless_the_check_is_off():
    assert native_values({}) == {}
    shutdown = "STALL_SHUTDOWN_TIME_SECONDS"
    off = {"STALL_CHECK_TIME_SECONDS": "0"}
    assert native_values(off)[shutdown] == 0
    assert native_values({**off, shutdown: "7"})[shutdown] == 7_000_000_000


def test_secret_is_not_shown():
    assert "hush" not in repr(read_settings({"TFRING_SECRET": "hush" * 8}))
