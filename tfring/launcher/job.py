"""Runs a job: starts the ranks, prints their output, ends all when one fails."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfring.bootstrap.descriptors import raise_descriptor_limit
from tfring.explain.launched import RunRecords
from tfring.launcher import report
from tfring.launcher.environment import sent_variables
from tfring.launcher.output import OutputMerger, Stream
from tfring.launcher.placement import Slot, UsageError, is_local
from tfring.launcher.process import RankProcess, start_rank
from tfring.launcher.remote import Host, RemoteAgent
from tfring.security.secret import fresh_secret
from tfring.ssh.options import SshOptions

# After the first failure the other ranks have so long to print their own errors, and then, after
# SIGTERM, to clean up.
REPORT_SECONDS = 2.0
TERMINATE_SECONDS = 3.0
# After a signal to the launcher the ranks have so long to write a last checkpoint.
STOP_SECONDS = 30.0
# For so long after the end of a rank its output is read from the pipe.
_DRAIN_SECONDS = 1.0

# How often to look for the end of a rank that has closed its output, where no signal tells it.
_POLL_SECONDS = 0.1
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RENDEZVOUS = b"tfring-rendezvous "


@dataclass(frozen=True)
class JobOptions:
    """What to run, and how."""

    slots: list[Slot]
    argv: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ssh: SshOptions = field(default_factory=SshOptions)
    interface: str | None = None
    start_timeout: float = 60.0
    output_folder: Path | None = None
    # What ranks on other hosts get besides `environment`; None: what sent_variables() chooses.
    sent: Mapping[str, str] | None = None
    verbose: bool = False


class JobRunner:
    """Runs one job from its start to its end.

    One thread waits for output, signals and the end of ranks. The first rank that fails starts an
    escalation: the others get time to print their own errors, then SIGTERM, then SIGKILL, and at
    last their agents are killed. A signal to the launcher is passed on and starts one, too, which
    leaves time for a checkpoint; a second signal leaves none.

    Used by one thread: the main thread, which handles signals, or any other, which leaves them
    alone. If run() raises, the agents read end of file and end the ranks that still run.

    Args:
        options: What to run.
        merger: Gets the output of the ranks.
        records: Where the ranks of this host keep their records.
    """

    def __init__(self, options: JobOptions, merger: OutputMerger, records: RunRecords) -> None:
        self._options = options
        self._merger = merger
        self._records = records
        self._processes: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._open: dict[Stream, RankProcess] = {}
        self._hosts: dict[str, Host] = {}
        self._streams: dict[tuple[int, str], Stream] = {}
        # Rank 0's first line says where it listens; until then its output is kept here.
        self._first_output: bytes | None = b""
        self._stopping: int | None = None  # the signal that the launcher got
        self._failed = False  # a rank failed before any signal
        # When to send which signal to the ranks that still run, in order. 0: kill their agents.
        self._escalation: list[tuple[float, int]] = []
        self._wake_fd = -1
        self._secret = fresh_secret()
        self._job_id = fresh_secret()[:16]

    @property
    def stopped_by(self) -> int | None:
        """The signal to this process that ended the job; None if there was none."""
        return None if self._failed else self._stopping

    def run(self) -> int:
        """Runs the job; returns the exit code for the shell."""
        self._wake_fd, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        # Only the main thread gets signals. In another one the end of a rank's output wakes us.
        signals = threading.current_thread() is threading.main_thread()
        old: dict[int, Any] = {}
        if signals:
            old_wakeup = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
            # A signal that is ignored (nohup) stays ignored.
            wanted = (*_FORWARDED, signal.SIGTSTP)
            handled = [n for n in wanted if signal.getsignal(n) is not signal.SIG_IGN]
            old = {n: signal.signal(n, lambda *_: None) for n in (*handled, signal.SIGCHLD)}
        self._selector.register(self._wake_fd, selectors.EVENT_READ, None)
        raise_descriptor_limit()
        try:
            self._start_all()
            while self._running():
                self._process_events()
            self._drain()
        finally:
            for process in self._processes:
                self._release(process)
            for number, handler in old.items():
                signal.signal(number, handler)
            if signals:
                signal.set_wakeup_fd(old_wakeup)
            self._selector.close()
            os.close(self._wake_fd)
            os.close(wake_write)
        code = self._report()
        self._records.succeeded = code == 0
        return code

    def _report(self) -> int:
        """Prints how the job failed, if it did; returns the exit code."""
        first = report.first_failure(self._processes)
        if first is None:
            return 0
        if self._stopping is not None and not self._failed:
            name = signal.Signals(self._stopping).name
            self._merger.note(f"tfring run: stopped by {name}, passed on to all ranks")
        else:
            self._merger.note(report.describe(self._processes))
            if why := self._records.explanation():
                self._merger.note(f"tfring run: {why}")
        return first.exit_code()

    def _start_all(self) -> None:
        slots = self._options.slots
        other_hosts = [s.host for s in slots if s.host != slots[0].host]
        listen = {
            "interface": self._options.interface,
            "towards": other_hosts[0] if other_hosts else None,
        }
        address, port = "", 0
        for slot in slots:
            host = self._host(slot.host)
            process = start_rank(
                slot,
                self._options.argv,
                self._environment(slot, address, port, remote=host is not None),
                host=host,
                listen=listen if slot.rank == 0 else None,
                copies=self._options.output_folder,
                ranks=len(slots),
            )
            self._processes.append(process)
            self._watch(process)
            if self._options.verbose:
                self._merger.note(
                    f"tfring run: rank {slot.rank} on {slot.host}, local rank {slot.local_rank}, "
                    f"agent {process.agent.pid}"
                )
            if slot.rank == 0:
                address, port = self._wait_for_rendezvous(process)
                if port == 0:
                    return  # rank 0 did not start; its error output has the reason

    def _host(self, name: str) -> Host | None:
        """Returns the connection to another host, made for its first rank; None for this host."""
        if name not in self._hosts and is_local(name):
            return None
        if name not in self._hosts:
            host = self._hosts[name] = Host(name, self._options.ssh)
            for fd in host.fds()[1:]:
                self._selector.register(fd, selectors.EVENT_READ, host)
        return self._hosts[name]

    def _environment(self, slot: Slot, address: str, port: int, *, remote: bool) -> dict[str, str]:
        size = len(self._options.slots)
        sent = self._options.sent
        if sent is None:
            sent = sent_variables(os.environ)
        values = {
            **(sent if remote else {}),
            **({} if remote else self._records.variables),
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
            **self._options.environment,
            "TFRING_PARENT": "",  # of a rank that starts this job
            "TFRING_RANK": str(slot.rank),
            "TFRING_SIZE": str(size),
            "TFRING_LOCAL_RANK": str(slot.local_rank),
            "TFRING_LOCAL_SIZE": str(slot.local_size),
            "TFRING_CROSS_RANK": str(slot.cross_rank),
            "TFRING_CROSS_SIZE": str(slot.cross_size),
            "TFRING_SECRET": self._secret,
            "TFRING_JOB_ID": self._job_id,
            "TFRING_START_TIMEOUT": f"{self._options.start_timeout:g}",
        }
        if self._options.interface:
            values["TFRING_INTERFACE"] = self._options.interface
        if port:
            values["TFRING_RENDEZVOUS_ADDR"] = address
            values["TFRING_RENDEZVOUS_PORT"] = str(port)
        return values

    def _wait_for_rendezvous(self, process: RankProcess) -> tuple[str, int]:
        """Waits until rank 0 says where it listens. Port 0 if it could not start."""
        deadline = time.monotonic() + self._options.start_timeout
        assert self._first_output is not None
        while b"\n" not in self._first_output and process.code is None:
            self._process_events(deadline)
            if self._stopping is not None:
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                break
        line, _, rest = self._first_output.partition(b"\n")
        self._first_output = None
        words = line.split()
        if process.code is not None and not line:
            return "", 0
        if not line.startswith(_RENDEZVOUS) or len(words) != 3:
            noise = process.agent.host.noise if isinstance(process.agent, RemoteAgent) else b""
            raise UsageError(
                f"rank 0's agent on {process.slot.host} did not answer within "
                f"{self._options.start_timeout:g} s as expected ({(line or noise)[:200]!r}): check "
                "that ssh to it needs no password, and that the same Python and tfring are there"
            )
        if rest:
            self._handle_output(self._streams[0, "stdout"], rest)
        return words[1].decode(), int(words[2])

    def _watch(self, process: RankProcess) -> None:
        for name in ("stdout", "stderr"):
            stream = self._streams[process.rank, name] = self._merger.add(process.rank, name)
            self._open[stream] = process
        for name, pipe in process.agent.pipes().items():
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, self._streams[process.rank, name])

    def _process_events(self, deadline: float | None = None) -> None:
        """Waits for output, a signal, the end of a rank or a deadline, and handles it."""
        now = time.monotonic()
        for host in self._hosts.values():
            self._watch_for_space(host)
        deadlines = [deadline, self._merger.tick(now), *(due for due, _ in self._escalation[:1])]
        limits = [d - now for d in deadlines if d is not None]
        if len(self._open) < 2 * len(self._running()):
            limits.append(_POLL_SECONDS)  # a rank has closed its output and will end
        for key, _ in self._selector.select(max(0.0, min(limits)) if limits else None):
            self._handle_event(key)
        self._reap()
        self._escalate()

    def _handle_event(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            self._handle_signals(os.read(key.fd, 4096))
        elif isinstance(key.data, Stream):
            self._read(key.fd, key.data)
        elif key.events == selectors.EVENT_WRITE:
            key.data.flush()
        else:
            found = key.data.read(key.fd)
            if found is None:
                self._selector.unregister(key.fd)
            for rank, name, data in found or ():
                self._handle_output(self._streams[rank, name], data)

    def _watch_for_space(self, host: Host) -> None:
        """Waits for space on a connection where something waits to be written, and only there."""
        fd = host.fds()[0]
        watched = fd in self._selector.get_map()
        if host.wants_to_write() and not watched:
            self._selector.register(fd, selectors.EVENT_WRITE, host)
        elif watched and not host.wants_to_write():
            self._selector.unregister(fd)

    def _read(self, fd: int, stream: Stream) -> bool:
        """Reads available output; returns False at the end of the stream."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        if data:
            self._handle_output(stream, data)
            return True
        self._selector.unregister(fd)
        self._merger.finish(stream)
        del self._open[stream]
        return False

    def _handle_output(self, stream: Stream, data: bytes) -> None:
        if self._first_output is not None and (stream.rank, stream.name) == (0, "stdout"):
            self._first_output += data
            return
        now = time.monotonic()
        self._open[stream].record_output(stream.name, data, now)
        self._merger.feed(stream, data, now)

    def _handle_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGTSTP:
                self._suspend()
            if number not in _FORWARDED:
                continue
            now = time.monotonic()
            # After a failure no rank has to write a checkpoint either.
            second = self._stopping is not None or self._failed
            self._stopping = number
            for process in self._running():
                process.signal(number)
            if not second:
                self._merger.note(
                    f"tfring run: {signal.Signals(number).name} was passed on to all ranks, which "
                    f"have {STOP_SECONDS:g} s to end; a second one kills them at once"
                )
            kill_at = now if second else now + STOP_SECONDS
            self._escalation = [(kill_at, signal.SIGKILL), (kill_at + TERMINATE_SECONDS, 0)]

    def _suspend(self) -> None:
        """Stops the ranks and this process, as the terminal asked (Ctrl-Z), until it goes on.

        The ranks have sessions of their own, so the terminal stops none of them; and as their
        process groups have no parent in their sessions, SIGTSTP would not stop them either.
        """
        for process in self._running():
            process.signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in self._running():
            process.signal(signal.SIGCONT)

    def _running(self) -> list[RankProcess]:
        return [p for p in self._processes if p.code is None]

    def _reap(self) -> None:
        for process in self._running():
            code = process.agent.poll()
            if code is None:
                continue
            now = time.monotonic()
            process.code, process.ended_at = code, now
            if process.failed() and not self._escalation:
                self._failed = True
                terminate_at = now + REPORT_SECONDS
                kill_at = terminate_at + TERMINATE_SECONDS
                self._escalation = [
                    (terminate_at, signal.SIGTERM),
                    (kill_at, signal.SIGKILL),
                    (kill_at + TERMINATE_SECONDS, 0),
                ]

    def _escalate(self) -> None:
        """Sends the signals that are due to the ranks that still run."""
        while self._escalation and time.monotonic() >= self._escalation[0][0]:
            _, number = self._escalation.pop(0)
            for process in self._running():
                process.ended_by_launcher = True
                if number:
                    process.signal(number)
                else:
                    process.agent.kill()  # it does not react; perhaps its host is gone

    def _drain(self) -> None:
        """Reads the output that is left in the pipes of the ranks."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while len(self._selector.get_map()) > 1 and time.monotonic() < deadline:
            for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                self._handle_event(key)
        for stream in list(self._open):
            self._merger.finish(stream)
        self._open.clear()

    def _release(self, process: RankProcess) -> None:
        process.agent.close()
        for copy in process.copies.values():
            copy.close()
