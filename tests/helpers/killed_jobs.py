"""A job of `tfring run` in its own namespaces, whose processes are killed."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import plain_shell
from kill_plans import Kill, Plan
from launcher_tools import ROOT, environment, run_command
from network_namespaces import Hosts

from benchmarks.elastic.faults import FaultFile
from benchmarks.elastic.worker import Settings

# Limit for a job to end after its last kill, and for leftover processes to end after the job.
# Beyond it we call it a hang.
HANG_SECONDS = 120.0
# For --stop-timeout and --agent-timeout; for --start-timeout and --elastic-timeout: a host that is
# waited for may not come back.
STOP_SECONDS, SILENCE_SECONDS, START_SECONDS = 5, 10, 30
_LOOK_SECONDS = 0.01
_LISTENS = "0A"  # in /proc/net/tcp
# A killed rank leaves them for `tfring explain`; tfring removes them a few jobs later.
_OF_RECORDS = (".record", ".socket")


class Logs:
    """The log lines of the ranks of a job, in time order."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read = folder, collections.Counter[Path]()
        self.events: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Reads the new log lines; returns all lines so far."""
        for path in self._folder.glob("worker*.log"):
            with path.open("rb") as file:
                file.seek(self._read[path])
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._read[path] += len(data)
            worker = int(path.stem.removeprefix("worker"))
            self.events += [{**json.loads(line), "w": worker} for line in data.splitlines()]
        return self.events

    def step(self) -> int:
        """The last step that any rank finished."""
        return max((e["step"] for e in self.read() if e["e"] == "commit"), default=0)


def processes() -> dict[int, tuple[int, str]]:
    """Returns the parent and the command line of each running process of this namespace."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                text = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if text[0] != "Z":
                    found[int(entry.name)] = (int(text[1]), command)
    return found


def below(pid: int, there: dict[int, tuple[int, str]]) -> set[int]:
    """Returns a process and all its descendants."""
    found = {pid}
    while more := {one for one, (parent, _) in there.items() if parent in found} - found:
        found |= more
    return found


class Job:
    """One job in the namespaces of this process, which is their first process."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder, self.logs = plan, folder, Logs(folder)
        self.attempt = 0
        self.hosts = Hosts(plan.hosts + plan.apart) if plan.hosts > 1 else None
        self.coordinator: subprocess.Popen[bytes] | None = None  # on the last host
        self.launchers: dict[int, subprocess.Popen[bytes]] = {}
        self.codes: list[tuple[int, int]] = []  # the host and the exit code of each launcher
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        self.killed: list[dict[str, Any]] = []
        self.doomed: dict[int, int] = {}  # the killed processes, and the times
        self.wrong: list[str] = []
        self.launcher_killed: set[int] = set()  # hosts whose launchers were killed
        self.lost_host = False  # a host was lost and does not come back
        self.lost_coordinator = False  # the coordinator was lost
        self._set_up()

    def _set_up(self) -> None:
        for name in ("tmp", "bin"):
            (self.folder / name).mkdir()
        FaultFile(self.folder / "faults", create=True)
        ssh = self.folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {sys.executable} {plain_shell.__file__} "$@"\n')
        ssh.chmod(0o755)
        if self.hosts is not None:
            self.hosts.up()
            if self.plan.kind.endswith("-hosts"):
                self.serve(1)

    def _environment(self) -> dict[str, str]:
        path = f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"
        more = {"TMPDIR": f"{self.folder}/tmp", "PATH": path}
        return environment(
            **more, TFRING_SECRET="of this test alone, and 32 long", ATTEMPT=str(self.attempt)
        )

    def _inside(self, host: int) -> list[str]:
        return [] if self.hosts is None else self.hosts.inside(host)

    def serve(self, host: int) -> None:
        """Starts the server that runs commands for ssh on a host."""
        command = [*self._inside(host), sys.executable, plain_shell.__file__, "serve"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, env=self._environment())
        assert server.stdout is not None and server.stdout.readline() == b"ready\n"
        self.servers[host] = server

    def start(self) -> None:
        """Starts the job, on all its nodes."""
        if self.plan.apart:
            self._coordinate()
        for host in range(self.plan.hosts if self.plan.nodes else 1):
            self._launch(host)

    def _coordinate(self) -> None:
        """Starts the coordinator, or its replacement."""
        assert self.hosts is not None
        command = [sys.executable, "-m", "tfring", "coordinator", self.hosts.address(2)]
        with (self.folder / "err.coordinator").open("ab") as err:
            self.coordinator = subprocess.Popen(
                [*self.hosts.inside(2), *command],
                stdin=subprocess.DEVNULL,
                stderr=err,
                env=self._environment(),
                cwd=ROOT,
            )

    def _options(self, host: int) -> list[object]:
        plan = self.plan
        events = self.folder / f"events.{host}.{self.attempt}.{len(self.codes)}"
        options: list[object] = ["--stop-timeout", STOP_SECONDS, "--events", events]
        if not plan.elastic:
            options += ["--agent-timeout", SILENCE_SECONDS]
        if plan.elastic or plan.nodes:
            options += ["--start-timeout", START_SECONDS]
        if plan.nodes:
            assert self.hosts is not None
            options += ["--nnodes", "1:2" if plan.elastic else 2, "--max-restarts", 10]
            options += ["--elastic-timeout", START_SECONDS]
            options += ["--nproc-per-node", max(1, plan.ranks // 2), "--rdzv-id", "job"]
            if plan.apart:
                return [*options, "--coordinator", self.hosts.address(2)]
            return [*options, "--rdzv-endpoint", self.hosts.address(0)]
        if self.hosts is not None:
            here, there = self.hosts.address(0), self.hosts.address(1)
            options += ["-H", f"{here}:{plan.ranks // 2},{there}:{(plan.ranks + 1) // 2}"]
        options += ["--min-np", 1] if plan.elastic else ["--max-restarts", 10]
        return [*options, "-np", plan.ranks]

    def _command(self) -> list[object]:
        settings = Settings(steps=self.plan.steps, mb=0.05, state_mb=0.02)
        rest = json.dumps(dataclasses.asdict(settings))
        return [sys.executable, *self.plan.program, self.folder, rest]

    def _launch(self, host: int) -> None:
        command = run_command(*self._options(host), *self._command())
        with (
            (self.folder / f"out.{host}").open("ab") as out,
            (self.folder / f"err.{host}").open("ab") as err,
        ):
            self.launchers[host] = subprocess.Popen(
                [*self._inside(host), *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment(),
                cwd=ROOT,
            )

    # Kills.

    def wait(self, what: Callable[[], object], seconds: float = HANG_SECONDS) -> bool:
        """Waits until what() is true or the job has ended; returns whether the job goes on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.running():
            if what():
                return True
            time.sleep(_LOOK_SECONDS)
        return bool(self.running())

    def running(self) -> list[int]:
        """The hosts on which a launcher runs. Notes the exit codes of the launchers that ended."""
        for host, launcher in list(self.launchers.items()):
            if launcher.poll() is not None:
                self.codes.append((host, launcher.returncode))
                del self.launchers[host]
        return list(self.launchers)

    def victims(self, kill: Kill) -> tuple[int, set[int]] | None:
        """Returns the host and the processes of a kill; None if there are none now."""
        there = processes()
        agents = [pid for pid, (_, command) in there.items() if "host_agent.main" in command]
        if kill.victim == "launcher":
            hosts = sorted(self.running())
            host = hosts[int(kill.choice * len(hosts))]
            return host, {self.launchers[host].pid}
        if kill.victim == "host":
            return int(kill.choice < 0.7), set()
        if kill.victim == "coordinator":
            one = self.coordinator
            return None if one is None or one.poll() is not None else (2, {one.pid})
        if kill.victim == "agent":
            found = agents
        else:
            found = [pid for pid, (parent, _) in there.items() if parent in agents]
            found = [pid for pid in found if "host_agent" not in there[pid][1]]
        if not found:
            return None
        return -1, {sorted(found)[int(kill.choice * len(found))]}

    def kill(self, kill: Kill) -> None:
        """Waits for the moment and for a victim, and kills it."""
        begin = time.monotonic()
        if kill.moment == "step":
            self.wait(lambda: self.logs.step() >= kill.share * self.plan.steps)
            time.sleep(kill.pause)
        else:
            self.wait(lambda: time.monotonic() > begin + kill.share)
        self.wait(lambda: self.victims(kill) is not None)
        found = self.victims(kill) if self.running() else None
        if found is None:
            return
        host, pids = found
        step = self.logs.step()
        now = time.monotonic_ns()
        there = processes()
        ends = {one for pid in pids for one in below(pid, there)}
        if any("plain_shell" in there[pid][1] for pid in pids):  # ssh to the second host
            assert self.hosts is not None
            ends |= set(self.hosts.pids(1))
        if kill.victim == "host":
            assert self.hosts is not None
            ends = set(self.hosts.pids(host))
            if kill.silent:
                self.hosts.connect(host, connected=False)
            self.hosts.kill(host)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.doomed.update(dict.fromkeys(ends, now))
        # When the launcher of the job, or of the node that serves it, ends, the others end, too.
        last = host == 0 and not self.plan.apart
        self.killed.append({"victim": kill.victim, "t": now, "step": step, "ends": last})
        self._lost(kill, host)

    def _lost(self, kill: Kill, host: int) -> None:
        """Brings a lost host, launcher or coordinator back if the plan says so."""
        if host < 0:
            return
        if kill.victim == "coordinator":
            assert self.coordinator is not None
            self.coordinator.wait()
            self.lost_coordinator = not kill.back
            if kill.back:
                time.sleep(kill.pause * 10)
                self._coordinate()
            return
        if host in self.launchers:
            self.launchers[host].wait()
            self.launcher_killed.add(host)
        if not kill.back:
            self.lost_host = self.lost_host or kill.victim == "host" or self.plan.nodes
            return
        time.sleep(kill.pause * 10)
        self.running()
        if self.hosts is not None and kill.victim == "host":
            self.hosts.connect(host, connected=True)
            if host in self.servers:
                self.serve(host)
        if self.plan.nodes and (host != 0 or self.plan.apart) and self.running():
            self._launch(host)

    # The end.

    def end(self) -> None:
        """Waits for the end of the job, and of all its processes."""
        deadline = time.monotonic() + HANG_SECONDS
        while self.running() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        if self.running():
            self.wrong.append(f"hang: launchers on hosts {self.running()} still run")
            for pid, (_, command) in processes().items():
                self.wrong.append(f"    {pid} {command[-150:]}")
                if "benchmarks.elastic.worker" in command:
                    os.kill(pid, signal.SIGUSR2)
            time.sleep(1.0)
        self._end_coordinator()
        for server in self.servers.values():
            server.kill()
            server.wait()
        self.servers.clear()
        self._gone()

    def _end_coordinator(self) -> None:
        """Waits for a coordinator that was not killed, if the job ended well; kills any other."""
        coordinator = self.coordinator
        if coordinator is None:
            return
        killed = any(kill["victim"] == "coordinator" for kill in self.killed)
        if not killed and any(code == 0 for _, code in self.codes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                coordinator.wait(HANG_SECONDS)
            if coordinator.poll() != 0:
                self.wrong.append(f"hang: the coordinator ended with {coordinator.poll()}")
        coordinator.kill()
        coordinator.wait()

    def _gone(self) -> None:
        begin = time.monotonic()
        while time.monotonic() < begin + HANG_SECONDS and not self.launchers:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            left = {pid: text for pid, (_, text) in processes().items() if pid != os.getpid()}
            if not left:
                break
            time.sleep(_LOOK_SECONDS)
        else:
            left = {pid: text for pid, (_, text) in processes().items() if pid != os.getpid()}
            self.wrong += [f"left: process {pid} {text[-150:]}" for pid, text in left.items()]
        seconds = time.monotonic() - begin
        if seconds > STOP_SECONDS + SILENCE_SECONDS + 5:
            self.wrong.append(f"left: processes for {seconds:.1f} s")

    def left(self, *, failed: bool) -> Iterator[str]:
        """Returns the ports and files that are left.

        `tfring jobs` keeps every job for a day, with the records of a failed one.
        """
        spaces: list[list[str]] = [[]]
        if self.hosts is not None:
            names = map(self.hosts.name, range(self.hosts.count))
            spaces = [["ip", "netns", "exec", name] for name in names]
        for space in spaces:
            command = [*space, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
            shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            for line in shown.splitlines():
                if line.split()[3] == _LISTENS:
                    yield f"left: a listening port: {line}"
        for folder in (self.folder / "tmp", Path("/dev/shm"), Path("/run")):
            for path in folder.rglob("*"):
                stays = path.suffix == ".job" or (failed and path.suffix in _OF_RECORDS)
                if not path.is_dir() and not stays and path.parent.name != "netns":
                    yield f"left: {path}"

    def errors(self) -> str:
        """The error output of the launchers."""
        files = sorted(self.folder.glob("err.*"))
        return "".join(file.read_text(errors="replace") for file in files)
