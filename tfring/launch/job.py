"""Runs a job whose ranks stay: starts them, and ends all when one fails."""

from __future__ import annotations

import contextlib
import os
import time

from tfring.launch.agents.rank import RankProcess
from tfring.launch.escalation import Escalation
from tfring.launch.exit_codes import LOST_PEER
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot, address_of
from tfring.launch.options.environment import job_variables, place_variables
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.merger import OutputMerger
from tfring.launch.reports import text
from tfring.launch.reports.verdict import verdict
from tfring.launch.signals import signal_name
from tfring.launch.supervisor import StoppedWhileStartingError, Supervisor
from tfring.observe.explain.launched import RunRecords
from tfring.runtime.texts.ranks import rank_ranges

# The other ranks have this long after the first failure to print their own errors.
_REPORT_SECONDS = 2.0
# After the end of the ranks the launcher reads this long what ssh says of a lost host.
_DRAIN_SECONDS = 1.0
# Between this many starts the launcher gives hosts signs of life and looks for signals.
_STARTS_AT_ONCE = 16


class JobRunner(Supervisor):
    """A job whose ranks stay: the first one that fails ends all.

    The others get time to print their own errors, then SIGTERM, then SIGKILL, and at last the
    agents of their hosts are killed. After a failure, but not after a signal, all ranks start
    again, `max_restarts` times. A signal before they have stops the job in good order: no rank of
    it is at work.
    """

    def __init__(self, options: JobOptions, merger: OutputMerger, records: RunRecords) -> None:
        """As of Supervisor."""
        super().__init__(options, merger, records)
        self._processes: list[RankProcess] = []
        self._shown: set[int] = set()  # ranks that _say_where() has named
        self._failed = False  # a rank failed before any signal
        self._restarts = 0
        # If a signal ended the job before a restart: which restart, and the failure before it.
        self._stopped_before = ""
        self._escalation = Escalation()

    @property
    def stopped_by(self) -> int | None:
        """See `Supervisor.stopped_by`."""
        return None if self._failed else self._stopping

    def _run(self) -> None:
        self._start_all()
        while self._running or self._starts_again():
            self._process_events()
        self._drain()

    def _starts_again(self) -> bool:
        """Restarts all ranks if one failed and restarts are left; returns whether it did."""
        first = text.first_failure([p for p in self._processes if not self._left_in_good_order(p)])
        if first is None or not self._failed or self._restarts == self._options.max_restarts:
            return False
        reason = text.end_in_a_line(first)
        of = f"restart {self._restarts + 1} of {self._options.max_restarts}"
        if self._stopping is None:
            self._restarts += 1
            self._note(f"{reason}; all ranks start again ({of})")
            self._note_traceback(first)
            self._files.restarted(self._restarts, reason)
            self._processes.clear()
            self._shown.clear()
            self._failed, self._escalation = False, Escalation()
            with contextlib.suppress(StoppedWhileStartingError):
                self._start_all()
                return True
        self._failed = False  # the signal ended the job, not the failure
        self._stopped_before = f"before all ranks had started again ({of}): {reason}"
        return False

    def _explain(self) -> tuple[int, str]:
        """Prints how the job failed, if it did; returns the exit code and why."""
        if self._stopping is not None and self._stopped_before:
            why = f"stopped by {signal_name(self._stopping)} {self._stopped_before}"
            self._note(why)
            return self._options.stopped_exit_code, why
        # A rank that failed counts before those that were asked to end, also if it came later.
        failed = [p for p in self._processes if p.failed() and not self._left_in_good_order(p)]
        first = text.first_failure(failed or self._processes)
        if first is None:
            return (0 if self._stopping is None else self._options.stopped_exit_code), ""
        if self._left_in_good_order(first):
            why = f"all ranks were asked to end, and have (exit code {first.code})"
            self._note(why)
        elif self._stopping is not None and not self._failed:
            self._note_errors({f"rank {p.rank}": p for p in self._processes})
            why = f"stopped by {signal_name(self._stopping)}, passed on to all ranks"
            if late := [p.rank for p in self._processes if p.ended_by_launcher]:
                why += f"; ranks that did not end in time and were killed: {rank_ranges(late)}"
            self._note(why)
        else:
            why = self._tell_failure(first)
            mine = {slot.rank for slot in self._options.slots}
            if self._options.share is not None and text.blamed(first) - mine:
                return LOST_PEER, why
        return first.exit_code(), why

    def _tell_failure(self, first: RankProcess) -> str:
        """Prints why the job has failed, unless the caller does; returns it in a few sentences."""
        ended = [process.rank for process in self._processes if process.ended_by_launcher]
        # Of a host that is lost we know more than the records that its ranks have left.
        found = None if first.lost() else self._records.explanation(ended)
        told = verdict(self._processes, first, self._records, found, self._options.size)
        self._records.tell(told.why)
        if self._options.tells:
            self._merger.note(told.block(self._records.known))
        return told.why

    def _start_all(self) -> None:
        slots = self._options.slots
        others = [address_of(s.host) for s in slots if s.host != slots[0].host]
        listen = {
            "interface": self._options.interface,
            "towards": others[0] if others else None,
        }
        share, self._starting = self._options.share, True
        where = {} if share is None else share.variables()
        where["TFRING_X_RESTART_COUNT"] = str(self._restarts)
        for slot in slots:
            opens = slot.rank == 0 and share is None
            self._start(slot, where, listen if opens else None)
            if slot.rank % _STARTS_AT_ONCE == 0:
                self._process_events(time.monotonic())
                if self._stopping is not None:
                    raise StoppedWhileStartingError
            if opens:
                address, port = self._wait_for_rendezvous(self._processes[0])
                if port == 0:
                    break  # rank 0 did not start; its error output has the reason
                where["TFRING_RENDEZVOUS_ADDR"] = address
                where["TFRING_RENDEZVOUS_PORT"] = str(port)
        self._starting = False

    def _start(
        self, slot: Slot, where: dict[str, str], listen: dict[str, str | None] | None
    ) -> None:
        """Has one rank started.

        `where` are variables that say which life of the job this is, and where rank 0 listens;
        `listen` tells rank 0 where to: see protocol.py.
        """
        host = self._connections.host(slot.host)
        same = job_variables(self._options, os.environ, remote=not host.local)
        variables = {**same, **place_variables(self._options, slot), **where}
        process = self._start_process(host, slot, slot.rank, variables, listen=listen)
        self._processes.append(process)

    def _wait_for_rendezvous(self, process: RankProcess) -> tuple[str, int]:
        """Waits until rank 0 says where it listens. Port 0 if it could not start."""
        deadline = time.monotonic() + self._options.start_timeout
        while "rendezvous" not in process.facts:
            if process.code is not None:
                return "", 0
            if time.monotonic() >= deadline:
                raise UsageError(
                    f"rank 0's agent on {process.slot.host} did not answer within "
                    f"{self._options.start_timeout:g} s as expected "
                    f"({process.connection.noise[:200]!r}): check that ssh to it needs no "
                    "password, and that the same Python and tfring are there"
                )
            self._process_events(deadline)
            if self._stopping is not None:
                raise StoppedWhileStartingError
        address, port = process.facts["rendezvous"]
        return str(address), int(port)

    def _process_events(self, deadline: float | None = None) -> None:
        """Waits for output, a signal, the end of a rank or a deadline, and handles it."""
        self._wait([deadline])
        for process in self._processes:
            if process.rank not in self._shown and "pid" in process.facts:
                self._shown.add(process.rank)
                self._say_where(process)
        self._reap()
        self._escalation.work(time.monotonic(), self._running.values())

    def _leaves_no_time(self) -> bool:
        # After a failure no rank has to write a checkpoint either.
        return self._stopping is not None or self._failed

    def _escalations(self) -> list[Escalation]:
        return [self._escalation]

    def _processes_of_job(self) -> list[RankProcess]:
        return self._processes

    def _ended(self, process: RankProcess) -> None:
        self._files.rank_ended(process)
        in_order = self._left_in_good_order(process)
        if process.failed() and not in_order and not self._failed and self._stopping is None:
            self._failed = True
            self._escalation.terminate(time.monotonic() + _REPORT_SECONDS)

    def _left_in_good_order(self, process: RankProcess) -> bool:
        """Whether a rank was asked to end, and did so after its checkpoint."""
        return process.failed() and process.code == self._options.stopped_exit_code

    def _say_where(self, process: RankProcess) -> None:
        facts, slot = process.facts, process.slot
        cores = rank_ranges(facts.get("cores", ()))
        self._files.event(
            "rank_started", rank=slot.rank, host=slot.host, pid=facts["pid"], cores=cores
        )
        if self._options.verbose:
            self._note(
                f"rank {slot.rank} on {slot.host}, local rank {slot.local_rank}, "
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
