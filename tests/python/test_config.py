"""Settings from the environment."""

from __future__ import annotations

import pytest

from tfring.config import SettingError, read_settings


def test_own_name_wins_over_horovods():
    settings = read_settings({"HOROVOD_FUSION_THRESHOLD": "1", "TFRING_FUSION_THRESHOLD": "2"})
    assert settings.runtime == {"FUSION_THRESHOLD": "2"}
    assert read_settings({"HOROVOD_FUSION_THRESHOLD": "1"}).runtime == {"FUSION_THRESHOLD": "1"}


def test_horovods_names_for_the_start():
    settings = read_settings({"HOROVOD_GLOO_IFACE": "eth0,eth1", "HOROVOD_START_TIMEOUT": "7"})
    assert settings.interfaces == ("eth0", "eth1")
    assert settings.start_timeout == 7


def test_job_id():
    """Tells jobs apart: test_meeting.py."""
    assert read_settings({"TFRING_JOB_ID": "a"}).job_id == "a"
    assert not read_settings({}).job_id


@pytest.mark.parametrize("value,expected", [("1", {"STALL_CHECK_TIME_SECONDS": "0"}), ("0", {})])
def test_stall_check_disable(value, expected):
    assert read_settings({"HOROVOD_STALL_CHECK_DISABLE": value}).runtime == expected


def test_settings_of_horovods_without_effect_say_so_once():
    environ = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "20",
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.8",
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
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES, HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE have",
        "HOROVOD_CYCLE_TIME has",
        "HOROVOD_ELASTIC has",
        "HOROVOD_HIERARCHICAL_ALLGATHER has",
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX has",
    ]


def test_horovods_names_for_autotuning():
    environ = {
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": "log.csv",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "2",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "4",
    }
    settings = read_settings(environ)
    assert settings.runtime == {
        name.removeprefix("HOROVOD_"): value for name, value in environ.items()
    }
    assert not settings.without_effect


def test_timeline():
    assert read_settings({"HOROVOD_TIMELINE": "a.json"}).timeline == "a.json"


@pytest.mark.parametrize("prefix", ["HOROVOD_", "TFRING_"])
def test_what_needs_no_setting_is_accepted(prefix):
    names = ("DYNAMIC_PROCESS_SETS", "TIMELINE_MARK_CYCLES")
    assert read_settings({f"{prefix}{name}": "1" for name in names}) == read_settings({})


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
        ("TFRING_MESH_LIMIT", "1"),
        ("TFRING_RENDEZVOUS_PORT", "70000"),
    ],
)
def test_impossible_value_names_variable_and_value(name, value):
    with pytest.raises(SettingError, match=f'{name} is "{value}"'):
        read_settings({name: value})


def test_secret_is_not_shown():
    assert "hush" not in repr(read_settings({"TFRING_SECRET": "hush" * 8}))
