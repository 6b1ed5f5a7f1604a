"""Options from a file, the commands of a dry run, and the cores of the ranks."""

from __future__ import annotations

import os
import re
import socket
import sys

import pytest
from launcher_tools import fake_ssh, run, write_script
from run_options import refused, run_options

from tfring.launch.agents.local_rank import read_places, share_of
from tfring.launch.cli import main, parser_of
from tfring.launch.hosts.errors import UsageError
from tfring.launch.options.config_file import with_file, words_of_file
from tfring.launch.options.environment import sent_variables, shown_value
from tfring.launch.options.option import read_options
from tfring.launch.options.resolve import unused_hosts
from tfring.launch.options.run_options import RunOptions


def words(path):
    pytest.importorskip("yaml")
    return words_of_file(path, parser_of("run"))


def with_words(path, *given):
    """The options of a file and of a command line."""
    parsed = parser_of("run").parse_args([*given, "--config-file", str(path), "x"])
    return read_options(RunOptions, with_file(parsed))


def write(folder, text):
    path = folder / "config.yaml"
    path.write_text(text)
    return path


HOROVODRUNS = """\
controller: gloo
params:
  fusion_threshold_mb: 32
  cache_capacity: 2048
  hierarchical_allreduce: true
autotune:
  enabled: false
timeline:
  filename: job.json
  mark_cycles: true
stall_check:
  enabled: true
  warning_time_seconds: 120
  shutdown_time_seconds: 240
library_options:
  mpi_threads_disable: false
logging:
  level: INFO
  hide_timestamp: true
num_proc: 2
env:
  DATA: /data
  EMPTY: ""
verbose: true
"""


def test_a_file_as_horovodruns(tmp_path):
    path = write(tmp_path, HOROVODRUNS)
    options = run_options(*words(path))
    assert (options.num_proc, options.verbose) == (2, True)
    assert options.x == (("DATA", "/data"), ("EMPTY", ""))
    assert options.variables == {
        "TFRING_FUSION_THRESHOLD": str(32 << 20),
        "TFRING_CACHE_CAPACITY": "2048",
        "TFRING_HIERARCHICAL_ALLREDUCE": "1",
        "HOROVOD_AUTOTUNE": "0",
        "TFRING_TIMELINE": os.path.abspath("job.json"),
        "TFRING_STALL_CHECK_TIME_SECONDS": "120",
        "TFRING_STALL_SHUTDOWN_TIME_SECONDS": "240",
        "TFRING_LOG_LEVEL": "info",
        "TFRING_X_LOG_HIDE_TIME": "1",
    }


def test_the_command_line_wins(tmp_path):
    path = write(tmp_path, "num_proc: 2\nhosts: [a:1, b:1]\nstop-timeout: 5\n")
    assert words(path) == ["--num-proc=2", "--hosts=a:1,b:1", "--stop-timeout=5"]
    (tmp_path / "hosts").write_text("c:3\n")
    path.write_text(path.read_text() + "env: {A: 1}\nbind-to: core\nlog-level: info\n")
    given = ("--bind-to", "none", "-x", "B=2", "--log-format", "json")
    options = with_words(path, "-hostfile", str(tmp_path / "hosts"), *given)
    assert (options.hosts, options.stop_timeout, options.bind_to) == ((("c", 3),), 5, "none")
    assert options.x == (("A", "1"), ("B", "2")) and options.command == ("x",)
    assert options.settings == {"TFRING_LOG_LEVEL": "info", "TFRING_LOG_FORMAT": "json"}
    done = run(
        "--config-file", path, "-H", "localhost:1", "-np", 1, "sh", "-c", "echo $TFRING_X_SIZE"
    )
    assert done.stdout == "0| 1\n", done.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense: 1", '"nonsense" is no option'),
        ("params:\n  nonsense: 1", '"params: nonsense" is no option'),
        ("config-file: x", '"config-file" is no option'),
        ("verbose: much", "true or false"),
        ("num_proc: true", "has to have a value"),
        ("num_proc:", "has to have a value"),
        ("controller: mpi", "does not use MPI"),
        ("- a\n- b", "no names with values"),
        ("a: [", "cannot be read"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, named):
    path = write(tmp_path, text)
    with pytest.raises(UsageError, match=named) as caught:
        words(path)
    assert str(path) in str(caught.value)


def test_false_is_the_opposite_or_nothing(tmp_path):
    text = """\
verbose: false
no_env: false
stall_check: {enabled: false}
logging: {with_timestamp: false}
autotune: {enabled: false}
params: {hierarchical_allreduce: false}
"""
    assert words(write(tmp_path, text)) == [
        "--no-stall-check",
        "--log-without-timestamp",
        "--no-autotune",
        "--no-hierarchical-allreduce",
    ]


def test_what_is_refused_on_the_command_line_is_refused_in_a_file(tmp_path, capsys):
    pytest.importorskip("yaml")
    path = write(tmp_path, "params: {cycle_time_ms: 5}")
    with pytest.raises(SystemExit):
        main(["run", "--config-file", str(path), "-np", "1", "true"])
    assert "not needed" in capsys.readouterr().err
    assert main(["run", "--config-file", str(tmp_path / "none"), "true"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_file_without_the_library(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["run", "--config-file", str(write(tmp_path, "a: 1")), "true"]) == 2
    assert "tfring[cluster]" in capsys.readouterr().err


def test_dry_run_starts_nothing_and_shows_no_secret(tmp_path):
    done = run(
        "-H",
        "localhost:1,me@127.0.0.2:2",
        "-p",
        2222,
        "-x",
        "DATA=/a b",
        "-x",
        "MY_TOKEN=my words",
        "--exit-report",
        tmp_path / "r",
        "--output-filename",
        tmp_path / "o",
        "--dry-run",
        "touch",
        tmp_path / "started",
        PATH=fake_ssh(tmp_path),
        TF_X="1",
        AWS_SECRET_ACCESS_KEY="its key",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin"]
    text = done.stdout
    assert "3 ranks on 2 hosts" in text and f"command: touch {tmp_path}/started" in text
    assert "ssh" in text and "-p 2222" in text and "me@127.0.0.2" in text
    assert "DATA='/a b'" in text and "TF_X=1" in text and "MY_TOKEN='********'" in text
    assert "TFRING_SECRET='********'" in text
    assert "No host was asked. tfring doctor --run, with this -H, tries" in text
    assert "rank 2: TFRING_X_CROSS_RANK=0" in text and "TFRING_X_LOCAL_RANK=1" in text
    assert "my words" not in text and "its key" not in text


def test_what_counts_as_a_secret():
    secrets = ("TFRING_SECRET", "HF_TOKEN", "AWS_ACCESS_KEY_ID", "DB_PASSWORD", "API_KEY")
    secrets += ("MYSQL_PWD", "SSH_PASSPHRASE", "GITHUB_PAT", "SENTRY_DSN", "SESSION_COOKIE")
    secrets += ("AZURE_STORAGE_CONNECTION_STRING", "SLACK_WEBHOOK", "SMTP_PASS")
    for name in secrets:
        assert shown_value(name, "x") == "********"
    for name in ("TFRING_SECRET_FILE", "TF_KEYS", "PATH", "KEYBOARD", "PWD", "PATTERN"):
        assert shown_value(name, "x") == "x"
    assert shown_value("TFRING_METRICS_TOKEN_FILE", "/t") == "/t"
    assert shown_value("DATABASE_URL", "postgres://me:pw@db/x") == "********"
    assert shown_value("PAGE", "https://host:80/@x") == "https://host:80/@x"


def test_secrets_of_other_services_stay_on_this_host():
    names = (
        "TF_CLI_CONFIG_FILE",
        "TF_TOKEN_app_terraform_io",
        "TF_VAR_db_password",
        "TF_API_TOKEN",
        "KERAS_API_KEY",
    )
    names += ("HOROVOD_SECRET_KEY", "PYTHON_GITLAB_PRIVATE_TOKEN", "PYTHON_KEYRING_PASSWORD")
    names += ("KRB5CCNAME", "CUDA_VISIBLE_DEVICES", "TFRING_SECRET", "TF_CONFIG", "HOME")
    kept = dict.fromkeys(names, "x") | {"KERAS_REMOTE": "https://me:pw@host/"}
    names = ("TF_XLA_FLAGS", "KERAS_BACKEND", "PYTHONHASHSEED", "PATH", "LC_ALL", "CUDA_HOME")
    sent = dict.fromkeys((*names, "TFRING_LOG_LEVEL", "OMP_NUM_THREADS", "NCCL_DEBUG"), "x")
    assert sent_variables({**kept, **sent}) == sent


@pytest.mark.parametrize(
    "bad",
    [
        ("--stop-timeout", "-1"),
        ("--agent-timeout", "-1"),
        ("--agent-timeout", "1"),
        ("--spares", "100001"),
        ("--max-np", "1000000"),
        ("--nproc-per-node", "1000000"),
    ],
)
def test_numbers_that_mean_nothing(bad, capsys):
    said = refused(capsys, "run", "-np", "1", *bad, "x")
    assert f"argument {bad[0]}" in said and re.search(f": {bad[1]} is (not|neither) ", said)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--standalone", "--nproc_per_node=2"], "--standalone: not needed: on one host give only"),
        (["--nnodes=2", "--rdzv_backend=c10d"], "--rdzv_backend: not needed: tfring assigns node"),
        (["--master-addr", "node1"], "--master-addr: give the address where the nodes"),
        (["-m"], "-m: write python -m MODULE"),
    ],
)
def test_habits_of_torchrun_are_answered(words, says, capsys):
    assert says in refused(capsys, "run", *words, "x")


@pytest.mark.parametrize("option", ["--exit-report", "--host-discovery-script", "--rdzv-id"])
def test_a_variable_that_is_not_set_is_noticed(option, capsys):
    said = refused(capsys, "run", "-np", "1", option, "", "x")
    assert (
        f"argument {option}" in said
        and "The value is empty. Check the variables of your shell." in said
    )


def test_ranks_on_one_host_of_several_are_told():
    job = {"SLURM_JOB_NODELIST": "a,b", "SLURM_TASKS_PER_NODE": "2(x2)"}
    options = run_options("-np", "3")
    hint = unused_hosts(options, job)
    assert "2 hosts of this Slurm job, 4 in all" in hint
    assert unused_hosts(options, {}) == ""
    assert unused_hosts(options, {**job, "SLURM_JOB_NODELIST": "a"}) == ""
    assert unused_hosts(run_options("-H", "a:2"), job) == ""


def test_a_job_of_a_scheduler_needs_no_option(tmp_path):
    nodes = tmp_path / "nodes"
    nodes.write_text("localhost\nlocalhost\n127.0.0.2\n")
    done = run(
        "sh",
        "-c",
        "echo $TFRING_X_RANK of $TFRING_X_SIZE, $TFRING_X_LOCAL_RANK",
        PATH=fake_ssh(tmp_path),
        PBS_NODEFILE=str(nodes),
    )
    lines = [line.partition("| ")[2] for line in done.stdout.splitlines()]
    assert sorted(lines) == ["0 of 3, 0", "1 of 3, 1", "2 of 3, 0"], done.stderr


def machine(folder, sockets, cores, threads):
    """A system's folder of processors; hardware threads of a core are numbered far apart."""
    for thread in range(threads):
        for package in range(sockets):
            for core in range(cores):
                cpu = (thread * sockets + package) * cores + core
                path = folder / f"cpu{cpu}" / "topology"
                path.mkdir(parents=True)
                (path / "physical_package_id").write_text(f"{package}\n")
                (path / "core_id").write_text(f"{core}\n")
    return sockets * cores * threads


def test_cores_and_sockets(tmp_path):
    count = machine(tmp_path, sockets=2, cores=2, threads=2)
    cores = read_places("core", range(count), tmp_path)
    assert cores == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert read_places("socket", range(count), tmp_path) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert read_places("core", [1, 2, 5], tmp_path) == [[1, 5], [2]]
    assert read_places("core", [3, 9], tmp_path / "nothing") == [[3], [9]]
    assert read_places("socket", [3, 9], tmp_path / "nothing") == [[3, 9]]


@pytest.mark.parametrize(("places", "ranks"), [(8, 3), (8, 8), (3, 8), (1, 4), (64, 5)])
def test_shares(places, ranks):
    """The ranks use all cores evenly, and share none if there are enough."""
    shares = [share_of([[p] for p in range(places)], rank, ranks) for rank in range(ranks)]
    assert all(shares) and shares == sorted(shares)
    assert sorted({cpu for share in shares for cpu in share}) == list(range(places))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if places >= ranks:
        assert sum(sizes) == places
    else:
        assert sizes == [1] * ranks


@pytest.mark.parametrize("kind", ["none", "core", "socket"])
def test_ranks_are_bound_and_it_is_shown(tmp_path, kind):
    path = write_script(tmp_path, "import os\nprint(sorted(os.sched_getaffinity(0)), flush=True)\n")
    done = run("-np", 2, "--verbose", "--bind-to", kind, sys.executable, path)
    assert done.returncode == 0, done.stderr
    mine = os.sched_getaffinity(0)
    for rank in range(2):
        wanted = sorted(mine)
        if kind != "none":
            wanted = share_of(read_places(kind, mine), rank, 2)
        assert f"{rank}| {wanted}" in done.stdout.splitlines()
        assert f"rank {rank} on {socket.gethostname()}, local rank {rank}, process " in done.stderr
    assert "cores " in done.stderr
