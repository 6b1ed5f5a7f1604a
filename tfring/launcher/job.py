"""Runs a job: starts the ranks, prints their output, ends all when one fails."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time

from tfring.explain.launched import RunRecords
from tfring.handshake.descriptors import raise_descriptor_limit
from tfring.launcher.agents.connections import Connections
from tfring.launcher.agents.host import Host, RankAgent
from tfring.launcher.agents.rank import RankProcess
from tfring.launcher.escalation import Escalation
from tfring.launcher.exit_codes import LOST_PEER
from tfring.launcher.hosts.errors import UsageError
from tfring.launcher.hosts.placement import Slot, address_of
from tfring.launcher.options.environment import rank_variables
from tfring.launcher.options.job_options import JobOptions
from tfring.launcher.output.merger import OutputMerger, Stream
from tfring.launcher.reports import text
from tfring.launcher.reports.job_files import JobFiles
from tfring.launcher.signals import ENDING, PASSED_ON, SignalWatch, second_signal_text, signal_name
from tfring.texts.ranks import rank_ranges

# For so long after the end of the ranks what ssh says of a host that was lost is read.
_DRAIN_SECONDS = 1.0
# After so many starts in a row signs of life are given to hosts, and signals looked at.
_STARTS_AT_ONCE = 16
_RENDEZVOUS = b"tfring-rendezvous "


class _StoppedWhileStartingError(Exception):
    """The launcher got a signal that ends the job before all ranks were started."""


class JobRunner:
    """Runs one job from its start to its end.

    One thread waits for output, signals and the end of ranks. The first rank that fails starts an
    escalation: the others get time to print their own errors, then SIGTERM, then SIGKILL, and at
    last the agents of their hosts are killed. A signal to the launcher is passed on and starts one,
    too, which leaves time for a checkpoint; a second signal leaves none. After a failure, but not
    after a signal, all ranks are started again, `max_restarts` times.

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
        self._files = JobFiles(options)
        self._processes: list[RankProcess] = []
        self._selector = selectors.DefaultSelector()
        self._signals = SignalWatch()
        self._connections = Connections(
            self._selector,
            options.shell,
            options.agent_timeout,
            self._handle_output,
            self._give_up,
            grace=options.stop_timeout,
        )
        self._streams: dict[tuple[int, str], Stream] = {}
        self._shown: set[int] = set()  # ranks of which it has been said where they run
        # Rank 0's first line says where it listens; until then its output is kept here.
        self._first_output: bytes | None = b"" if options.share is None else None
        self._all_started = False
        self._stopping: int | None = None  # the signal that the launcher got
        self._failed = False  # a rank failed before any signal
        self._restarts = 0
        self._escalation = Escalation()
        self.reason = ""  # why the job has failed, in a line, once it has ended

    @property
    def stopped_by(self) -> int | None:
        """The signal to this process that ended the job; None if there was none."""
        return None if self._failed else self._stopping

    def run(self) -> int:
        """Runs the job; returns the exit code for the shell.

        Raises:
            UsageError: The job cannot be started as the options say.
        """
        raise_descriptor_limit()
        why, code = "tfring run itself failed; its own error says why", 1
        try:
            self._files.open()
            with self._signals, self._selector:
                self._selector.register(self._signals.fd, selectors.EVENT_READ, None)
                self._run()
                code, why = self._explain()  # a signal does not end this process before it is told
        except UsageError as error:
            code, why = 2, str(error)
            raise
        except BrokenPipeError:
            code, why = 141, "nobody reads the output of tfring run any more"
            raise
        except _StoppedWhileStartingError:
            code, why = self._stopped_while_starting()
        finally:
            self.reason = why
            self._files.end(self._processes, code, self.stopped_by, why)
            self._connections.close()
            for trouble in self._files.close():
                self._merger.note(trouble)
        self._records.succeeded = code == 0
        return code

    def _run(self) -> None:
        self._files.begin(
            self._connections.host("localhost") if self._options.exit_report else None
        )
        self._start_all()
        while self._running() or self._starts_again():
            self._process_events()
        self._drain()

    def _starts_again(self) -> bool:
        """Starts all ranks again if one has failed, and that may be; returns whether it did."""
        first = text.first_failure([p for p in self._processes if not self._left_in_good_order(p)])
        if first is None or not self._failed or self._stopping is not None:
            return False
        if self._restarts == self._options.max_restarts:
            return False
        self._restarts += 1
        reason = text.end_in_a_line(first)
        of = f"restart {self._restarts} of {self._options.max_restarts}"
        self._merger.note(f"tfring run: {reason}; all ranks start again ({of})")
        self._files.restarted(self._restarts, reason)
        self._processes.clear()
        self._shown.clear()
        self._failed, self._escalation, self._all_started = False, Escalation(), False
        self._first_output = b"" if self._options.share is None else None
        self._start_all()
        return True

    def _explain(self) -> tuple[int, str]:
        """Prints how the job failed, if it did; returns the exit code and why."""
        # A rank that failed counts before those that were asked to end, also if it came later.
        failed = [p for p in self._processes if p.failed() and not self._left_in_good_order(p)]
        first = text.first_failure(failed or self._processes)
        if first is None:
            return (0 if self._stopping is None else self._options.stopped_exit_code), ""
        if self._left_in_good_order(first):
            why = f"all ranks were asked to end, and have (exit code {first.code})"
            self._merger.note(f"tfring run: {why}")
        elif self._stopping is not None and not self._failed:
            why = f"stopped by {signal_name(self._stopping)}, passed on to all ranks"
            self._merger.note(f"tfring run: {why}")
        else:
            self._merger.note(text.describe(self._processes))
            ended = [process.rank for process in self._processes if process.ended_by_launcher]
            why = self._records.explanation(ended)
            if why:
                self._merger.note(f"tfring run: {why}")
            mine = {slot.rank for slot in self._options.slots}
            if self._options.share is not None and text.blamed(first) - mine:
                return LOST_PEER, why or text.headline(first)
        return first.exit_code(), why or text.headline(first)

    def _stopped_while_starting(self) -> tuple[int, str]:
        assert self._stopping is not None
        why = f"stopped by {signal_name(self._stopping)} before all ranks were started"
        self._merger.note(f"tfring run: {why}")
        return 128 + self._stopping, why

    def _start_all(self) -> None:
        slots = self._options.slots
        others = [address_of(s.host) for s in slots if s.host != slots[0].host]
        listen = {
            "interface": self._options.interface,
            "towards": others[0] if others else None,
        }
        share = self._options.share
        where = {} if share is None else share.variables()
        # Ranks of the lives before are strangers to this one.
        life = f".{self._restarts}" if self._restarts else ""
        where["TFRING_JOB_ID"] = self._options.job_id + life
        where["TFRING_RESTART_COUNT"] = str(self._restarts)
        for slot in slots:
            opens = slot.rank == 0 and share is None
            self._start(slot, where, listen if opens else None)
            if slot.rank % _STARTS_AT_ONCE == 0:
                self._process_events(time.monotonic())
                if self._stopping is not None:
                    raise _StoppedWhileStartingError
            if opens:
                address, port = self._wait_for_rendezvous(self._processes[0])
                if port == 0:
                    return  # rank 0 did not start; its error output has the reason
                where["TFRING_RENDEZVOUS_ADDR"] = address
                where["TFRING_RENDEZVOUS_PORT"] = str(port)
        self._all_started = True

    def _start(
        self, slot: Slot, where: dict[str, str], listen: dict[str, str | None] | None
    ) -> None:
        """Has one rank started.

        Args:
            slot: Which rank, and on which host.
            where: Variables that say which life of the job this is, and where rank 0 listens.
            listen: Rank 0: where to listen; see protocol.py.
        """
        host = self._connections.host(slot.host)
        variables = rank_variables(
            self._options, slot, os.environ, remote=not host.local, records=self._records.variables
        )
        job = {
            "argv": self._options.argv,
            "env": {**variables, **where},
            "cwd": self._options.folder or os.getcwd(),
            "listen": listen,
            "bind_to": self._options.bind_to,
            "local_rank": slot.local_rank,
            "local_size": slot.local_size,
        }
        process = RankProcess(slot, RankAgent(host, slot.rank), copy=self._files.copier(slot.rank))
        for name in ("stdout", "stderr"):
            self._streams[slot.rank, name] = self._merger.add(slot.rank, name)
        self._processes.append(process)
        host.start(slot.rank, json.dumps(job).encode())
        host.flush()

    def _wait_for_rendezvous(self, process: RankProcess) -> tuple[str, int]:
        """Waits until rank 0 says where it listens. Port 0 if it could not start."""
        deadline = time.monotonic() + self._options.start_timeout
        assert self._first_output is not None
        while b"\n" not in self._first_output and process.code is None:
            self._process_events(deadline)
            if self._stopping is not None:
                raise _StoppedWhileStartingError
            if time.monotonic() >= deadline:
                break
        line, _, rest = self._first_output.partition(b"\n")
        self._first_output = None
        words = line.split()
        if process.code is not None and not line:
            return "", 0
        if not line.startswith(_RENDEZVOUS) or len(words) != 3:
            noise = process.agent.host.noise
            raise UsageError(
                f"rank 0's agent on {process.slot.host} did not answer within "
                f"{self._options.start_timeout:g} s as expected ({(line or noise)[:200]!r}): check "
                "that ssh to it needs no password, and that the same Python and tfring are there"
            )
        if rest:
            self._handle_output(process.agent.host, 0, "stdout", rest)
        return words[1].decode(), int(words[2])

    def _process_events(self, deadline: float | None = None) -> None:
        """Waits for output, a signal, the end of a rank or a deadline, and handles it."""
        now = time.monotonic()
        deadlines = [deadline, self._merger.tick(now), *self._escalation.due()]
        limits = [d - now for d in deadlines if d is not None]
        if (seconds := self._connections.prepare()) is not None:
            limits.append(seconds)
        for key, _ in self._selector.select(max(0.0, min(limits)) if limits else None):
            self._handle_event(key)
        self._connections.tick()
        self._reap()
        self._escalation.work(time.monotonic(), self._running())

    def _give_up(self, host: Host) -> None:
        self._merger.note(
            f"tfring run: host {host.name} gave no sign of life for {host.lease:g} s and is taken "
            "for lost; if it still runs, its agent ends its ranks by itself"
        )
        self._files.event("host_silent", host=host.name, seconds=host.lease)

    def _handle_event(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            for number in self._signals.read():
                self._handle_signal(number)
        else:
            self._connections.handle(key)

    def _handle_output(self, host: Host, rank: int, name: str, data: bytes) -> None:
        if self._first_output is not None and (rank, name) == (0, "stdout"):
            self._first_output += data
            return
        now = time.monotonic()
        index = rank - self._options.slots[0].rank
        if index >= len(self._processes):  # ssh has said it, and the rank starts again
            self._merger.note(f"tfring run: host {host.name}: {data.decode(errors='replace')}")
            return
        self._processes[index].record_output(name, data, now)
        self._merger.feed(self._streams[rank, name], data, now)

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._suspend()
        if number in (*ENDING, *PASSED_ON):
            for process in self._running():
                process.signal(number)
            self._files.event("signal", signal=signal_name(number))
        if number not in ENDING:
            return
        # After a failure no rank has to write a checkpoint either.
        second = self._stopping is not None or self._failed
        self._stopping = number
        now, wait = time.monotonic(), self._options.stop_timeout
        if not second and self._all_started:
            self._merger.note(
                f"tfring run: {signal_name(number)} was passed on to all ranks, which have "
                f"{wait:g} s to end; {second_signal_text(number)}"
            )
        self._escalation.kill(now if second else now + wait)

    def _suspend(self) -> None:
        """Stops the ranks and this process, as the terminal asked (Ctrl-Z), until it goes on.

        The ranks have sessions of their own, so the terminal stops none of them; and as their
        process groups have no parent in their sessions, SIGTSTP would not stop them either.
        """
        for process in self._running():
            process.signal(signal.SIGSTOP)
        self._connections.hold()
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in self._running():
            process.signal(signal.SIGCONT)

    def _running(self) -> list[RankProcess]:
        return [p for p in self._processes if p.code is None]

    def _reap(self) -> None:
        for process in self._running():
            if process.rank not in self._shown and "pid" in process.agent.facts():
                self._shown.add(process.rank)
                self._say_where(process)
            code = process.agent.poll()
            if code is None:
                continue
            now = time.monotonic()
            process.code, process.ended_at = code, now
            for name in ("stdout", "stderr"):
                self._merger.finish(self._streams[process.rank, name])
            self._files.rank_ended(process)
            in_order = self._left_in_good_order(process)
            if process.failed() and not in_order and not self._escalation:
                self._failed = True
                self._escalation.after_failure(now)

    def _left_in_good_order(self, process: RankProcess) -> bool:
        """Whether a rank was asked to end, and did so after its checkpoint."""
        return process.failed() and process.code == self._options.stopped_exit_code

    def _say_where(self, process: RankProcess) -> None:
        facts, slot = process.agent.facts(), process.slot
        cores = rank_ranges(facts.get("cores", ()))
        self._files.event(
            "rank_started", rank=slot.rank, host=slot.host, pid=facts["pid"], cores=cores
        )
        if self._options.verbose:
            self._merger.note(
                f"tfring run: rank {slot.rank} on {slot.host}, local rank {slot.local_rank}, "
                f"process {facts['pid']}, cores {cores}"
            )

    def _drain(self) -> None:
        """Reads what ssh has to say of hosts that were lost."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        for host in self._connections.hosts():
            fd = host.fds()[2]
            while host.ended and fd in self._selector.get_map() and time.monotonic() < deadline:
                for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                    self._handle_event(key)
