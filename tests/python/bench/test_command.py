"""`tfring bench`: its options, its table and files, and the comparison of two results."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfring.bench import table
from tfring.bench.options import BenchOptions
from tfring.bench.result import Result, Row, measured_row, read_result
from tfring.bench.verdict import verdict
from tfring.launch.cli import main


def row(section: str, way: str, count: int, net: float, seed: int = 1, rounds: int = 30) -> Row:
    """A row whose bare function and copies take 1 ms each, with a spread of 5 %."""
    random = np.random.default_rng(seed + count)
    bare = random.normal(1, 0.05, rounds)
    call = bare + net * random.normal(1, 0.05, rounds)
    return Row(
        section,
        way,
        count,
        1 if way == "call" else 161,
        rounds,
        rounds,
        median_ms=1 + net,
        p95_ms=2 + net,
        bare_ms=1.0,
        net_ms=net,
        net_low_ms=0.9 * net if net > 0.1 else -0.1,
        net_high_ms=1.1 * net,
        algbw_gbs=count / net / 1e6 if net > 0.1 else None,
        busbw_gbs=count / net / 1e6 if net > 0.1 else None,
        copy_ms=None if way == "step" else 1.0,
        alone_ms=0.75 if way == "step" else None,
        samples_ms={"call": call.tolist(), "bare": bare.tolist(), "copy": [1.0] * rounds},
    )


def made_result(slow: float = 1.0, seed: int = 1) -> Result:
    """A run of two ranks; nets are longer by a factor."""
    rows = [
        row("allreduce float32", "call", 4, 0.25 * slow, seed),
        row("allreduce float32", "call", 1 << 20, 12 * slow, seed),
        row("allreduce float32", "call", 2 << 20, 0.05, seed),
        row("model ResNet50 float32", "grouped", 102_000_000, 123 * slow, seed),
        row("step mlp", "step", 4_800_000, 0.5 * slow, seed),
    ]
    machine = {"cpu": "Some CPU", "cores": 2, "kernel": "6", "threads": 1}
    made = {"tfring": "0.1.0", "tensorflow-cpu": "2.21.0"}
    return Result(2, 1, 1.7e9, {}, machine, made, True, ["a note"], rows)


def test_rows_are_made_of_rounds() -> None:
    bare = np.linspace(1, 1.2, 10)[:, None] + np.zeros((1, 5))
    call = bare + 2
    call[3, 2] = 50  # one call of one round
    times = {"call": call, "bare": bare, "copy": bare, "other": bare}
    made = measured_row("s", "call", 1 << 20, 1, times=times, bus=1.5)
    assert (made.rounds, made.calls) == (10, 50)
    assert made.net_ms == pytest.approx(2) and made.net_low_ms == pytest.approx(2)
    assert made.median_ms == pytest.approx(3.1, abs=0.02) and made.bare_ms == pytest.approx(1.1)
    assert made.p95_ms < 50
    assert made.algbw_gbs == pytest.approx(1.048576 / 2) and made.busbw_gbs == pytest.approx(
        1.5 * 1.048576 / 2
    )
    assert set(made.samples_ms) == {"call", "bare", "copy"}
    assert made.net_over_copy == pytest.approx(2 / 1.1)
    assert made.over_bare == pytest.approx(3.1 / 1.1, abs=0.02)


def test_what_cannot_be_told_from_nothing_has_no_bandwidth() -> None:
    random = np.random.default_rng(5)
    bare = random.normal(1, 0.1, (40, 1))
    call = bare + random.normal(0.001, 0.1, (40, 1))
    made = measured_row("s", "call", 4, 1, times={"call": call, "bare": bare}, bus=1.0)
    assert made.net_low_ms is not None and made.net_low_ms < 0
    assert (made.algbw_gbs, made.busbw_gbs, made.net_over_copy) == (None, None, None)
    few = {"call": call[:2] + 5, "bare": bare[:2]}
    made = measured_row("s", "call", 4, 1, times=few, bus=1.0)
    assert (made.net_low_ms, made.net_high_ms, made.algbw_gbs) == (None, None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--collective allreduce,sum", "--collective sum: there are allreduce, allgather"),
        ("--min-bytes 4X", "--min-bytes 4X: it has to be a number of bytes, as 4, 64K or 1MiB"),
        ("--min-bytes 2M --max-bytes 1M", "--min-bytes 2097152 is more than --max-bytes 1048576"),
        ("--max-bytes 17G", "it has to be from 1 to 17179869184 bytes (16 GiB)"),
        ("--factor 1", "--factor 1: it has to be 2 or more"),
        ("--time-limit -1", "--time-limit -1: it has to be 0 or more"),
        ("--model resnet-50", "--model resnet-50: it has to be a name of keras.applications"),
        ("--step lstm", "--step lstm: there are mlp, cnn, and all"),
        ("--fail-above 1.1", "--fail-above goes with --compare a.json b.json"),
    ],
)
def test_impossible_options_are_refused(words: str, message: str, capsys: Any) -> None:
    assert main(["bench", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("tfring bench: ")
    assert message in error


def test_a_rank_starts_no_ranks(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for name, value in (("WORLD_SIZE", "2"), ("MASTER_ADDR", "here"), ("MASTER_PORT", "4000")):
        monkeypatch.setenv(name, value)
    assert main(["bench", "-np", "4", "-x", "A=1"]) == 2
    assert "-np, -x: this process is rank 1 of 2 already, started by" in capsys.readouterr().err


def test_options_reach_the_ranks_as_they_are() -> None:
    options = BenchOptions(("allgather",), 8, 100, 3, "int32", ("A", "B"), ("mlp",), 1.5, "a.json")
    assert BenchOptions.from_json(options.to_json()) == options
    assert options.sizes() == [8, 24, 72, 100]
    assert BenchOptions(min_bytes=4, max_bytes=4).sizes() == [4]


def test_the_verdict_says_what_the_numbers_mean_for_training() -> None:
    result = made_result()
    assert verdict(result) == [
        "An allreduce of 4 B takes 0.25 ms here, one of 2.00 MiB less than can be measured.",
        "The gradients of ResNet50 (97 MiB in 161 tensors) take 123 ms in each step.",
        "A training step of mlp takes 1.5 ms, 1.5 times as long as without the exchange: 2 ranks "
        "train 1 times as fast as one alone.",
    ]
    del result.rows[2]
    assert verdict(result)[:2] == [
        "An allreduce of 4 B takes 0.25 ms here, one of 1.00 MiB 12 ms (0.0874 GB/s, 12 times as "
        "long as copying it).",
        "So the gradients of a ResNet-50 (97 MiB) need about 1170 ms in each step, of which the "
        "backward pass hides a part.",
    ]
    assert verdict(replace(result, rows=[])) == []


def test_the_table_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    result = made_result()
    made = "tfring 0.1.0: 2 ranks on 1 host, Some CPU, 2 cores, TensorFlow 2.21.0"
    assert table.title(result) == made
    head = ["bytes", "rounds", "median", "p95", "net", "algbw", "busbw", "copy", "net/copy"]
    assert table.heading(result.rows[0])[0] == "allreduce float32"
    assert table.heading(result.rows[0])[1].split() == head
    cells = [table.line(each).split() for each in result.rows]
    assert cells[1] == ["1048576", "30", "13", "14", "12", "0.087", "0.087", "1", "12"]
    lost_in_the_noise = ["2097152", "30", "1.05", "2.05", "0.05", "-", "-", "1", "-"]
    assert cells[2] == lost_in_the_noise
    assert cells[3] == ["grouped", "30", "124", "125", "123", "0.829", "0.829", "1", "123"]
    assert cells[4] == ["step", "30", "1.5", "2.5", "1", "0.5", "1.5", "0.75"]
    result.write(str(path))
    found = read_result(str(path))
    assert found.complete and found.notes == ["a note"]
    assert [each.label for each in found.rows] == [each.label for each in result.rows]
    for ours, theirs in zip(result.rows, found.rows, strict=True):
        assert theirs.net_ms == ours.net_ms
        assert theirs.samples_ms["call"] == pytest.approx(ours.samples_ms["call"], rel=1e-5)
    assert json.loads(path.read_text())["rows"][1]["net_over_copy"] == 12


def compare(folder: Path, first: Result, second: Result, *more: str) -> int:
    paths = [str(folder / name) for name in ("a.json", "b.json")]
    for path, result in zip(paths, (first, second), strict=True):
        result.write(path)
    return main(["bench", "--compare", *paths, *more])


def verdicts(text: str) -> list[str]:
    ends = ("slower", "faster", "within the spread")
    return [end for line in text.splitlines() for end in ends if line.endswith(f"  {end}")]


def test_two_runs_of_the_same_differ_in_nothing(tmp_path: Path, capsys: Any) -> None:
    assert compare(tmp_path, made_result(), made_result(seed=2), "--fail-above", "1.001") == 0
    assert verdicts(capsys.readouterr().out) == ["within the spread"] * 5


def test_what_has_become_slower_is_found(tmp_path: Path, capsys: Any) -> None:
    second = made_result(slow=1.5, seed=2)
    assert compare(tmp_path, made_result(), second) == 0
    # A step of 1.5 ms then takes 1.75 ms; differences within the noise do not count.
    expected = ["slower", "slower", "within the spread", "slower", "slower"]
    text = capsys.readouterr().out
    assert verdicts(text) == expected
    assert "allreduce float32 1.00 MiB" in text
    assert compare(tmp_path, made_result(), second, "--fail-above", "1.2") == 1
    error = capsys.readouterr().err
    assert "allreduce float32 4 B is 1.5" in error and "step mlp" not in error
    assert compare(tmp_path, made_result(), second, "--fail-above", "1.7") == 0
    assert compare(tmp_path, second, made_result(), "--fail-above", "1.2") == 0
    assert "faster" in capsys.readouterr().out


def test_a_machine_that_was_slower_is_no_finding(tmp_path: Path, capsys: Any) -> None:
    """If copying also takes 1.6 times as long, the machine may be slower, not tfring."""
    second = made_result(slow=1.5, seed=2)
    for each in second.rows:
        each.samples_ms["copy"] = [1.6] * 30
    assert compare(tmp_path, made_result(), second, "--fail-above", "1.1") == 0
    assert verdicts(capsys.readouterr().out) == ["within the spread"] * 5


def test_runs_that_do_not_fit_are_refused_or_named(tmp_path: Path, capsys: Any) -> None:
    other = copy.deepcopy(made_result())
    other.machine["cpu"] = "Another"
    del other.rows[0]
    assert compare(tmp_path, made_result(), other) == 0
    error = capsys.readouterr().err
    assert "different machines: cpu Some CPU and Another" in error
    assert "1 rows are in one of the runs only" in error
    other.ranks = 4
    assert compare(tmp_path, made_result(), other) == 2
    assert "one has 2 ranks on 1 hosts, the other 4 on 1" in capsys.readouterr().err
    (tmp_path / "b.json").write_text('{"format": 1}')
    assert main(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "b.json is no result of tfring bench --json" in capsys.readouterr().err
    (tmp_path / "b.json").write_text('{"format": 99}')
    assert main(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "b.json has format 99" in capsys.readouterr().err
