"""Supervises the processes of a job on its hosts: what all kinds of jobs have in common."""

from __future__ import annotations

import abc
import json
import os
import selectors
import signal
import time
from collections.abc import Iterable, Mapping

from tfring.job.environments.identity import plain_id
from tfring.job.handshake.descriptors import raise_descriptor_limit
from tfring.launch.agents.connections import Connections
from tfring.launch.agents.host import Host
from tfring.launch.agents.rank import RankProcess
from tfring.launch.escalation import Escalation
from tfring.launch.hosts.errors import UsageError
from tfring.launch.hosts.placement import Slot
from tfring.launch.options.job_options import JobOptions
from tfring.launch.output.merger import OutputMerger, Stream
from tfring.launch.reports.job_files import JobFiles
from tfring.launch.reports.text import error_of, unshown
from tfring.launch.signals import (
    ENDING,
    PASSED_ON,
    SignalWatch,
    called_at_ends,
    second_signal_text,
    signal_name,
)
from tfring.observe.explain.launched import RunRecords
from tfring.runtime.texts.errors import ProgramError, of_any_rank


class StoppedWhileStartingError(BaseException):
    """The launcher got a signal that ends the job before all ranks were started.

    It may come anywhere in _prepare(), so it is no error that others might handle.
    """


class Supervisor(abc.ABC):
    """Runs one job from its start to its end. What an end means is for each kind of job to say.

    One thread waits for output, signals, the end of processes and what the kind of job waits for. A
    signal to the launcher is passed on and leaves the processes time for a checkpoint; a second
    signal leaves none.

    Used by one thread: the main thread, which handles signals, or another, which leaves them alone.
    If run() raises, the agents read end of file and end the processes that still run.
    """

    # What messages call the processes.
    noun = "ranks"

    def __init__(self, options: JobOptions, merger: OutputMerger, records: RunRecords) -> None:
        self._options = options
        self._merger = merger
        self._records = records
        self._records.begin(plain_id(options.job_id), options.argv)
        self._files = JobFiles(options)
        self._selector = selectors.DefaultSelector()
        self._signals = SignalWatch()
        self._connections = Connections(
            self._selector,
            options.shell,
            options.agent_timeout,
            self._on_output,
            self._on_silent,
            grace=options.stop_timeout,
        )
        # By the numbers of processes at their agents; those that have not ended.
        self._running: dict[int, RankProcess] = {}
        self._streams: dict[int, dict[str, Stream]] = {}
        self._stopping: int | None = None  # the signal that the launcher got
        self._starting = False  # a signal now ends all at once
        self.reason = ""  # why the job has failed, in a line, once it has ended

    @property
    def stopped_by(self) -> int | None:
        """The signal to this process that ended the job; None if there was none."""
        return self._stopping

    def run(self) -> int:
        """Runs the job; returns the exit code for the shell. UsageError: it cannot be started."""
        raise_descriptor_limit()
        why, code = "tfring run itself failed; its own error says why", 1
        try:
            self._files.open()
            with self._selector:
                # A signal does not end this process before it has told how the job ended.
                code, why = self._run_and_explain()
        except UsageError as error:
            code, why = 2, str(error)
            raise
        except BrokenPipeError:
            code, why = 141, "nobody reads the output of tfring run any more"
            raise
        finally:
            for number, process in self._running.items():  # this process goes before they end
                self._release(number, process)
            self.reason = why
            self._files.end(self._processes_of_job(), code, self.stopped_by, why)
            self._connections.close()
            self._close()
            for trouble in self._files.close():
                self._merger.note(trouble)
        self._records.succeeded = code == 0
        return code

    def _run_and_explain(self) -> tuple[int, str]:
        try:
            with called_at_ends(self._stop_before_start):
                self._prepare()
            with self._signals:
                self._selector.register(self._signals.fd, selectors.EVENT_READ, self._signals)
                self._files.begin()
                self._run()
                return self._explain()
        except StoppedWhileStartingError:
            assert self._stopping is not None
            why = f"stopped by {signal_name(self._stopping)} before all ranks were started"
            self._note(why)
            return 128 + self._stopping, why

    def _stop_before_start(self, number: int) -> None:
        self._stopping = number
        raise StoppedWhileStartingError

    # What each kind of job says.

    def _prepare(self) -> None:  # noqa: B027  (most kinds have nothing to do)
        """Gets ready; a signal ends the job meanwhile."""

    @abc.abstractmethod
    def _run(self) -> None:
        """Runs the job until nothing of it is left to wait for."""

    @abc.abstractmethod
    def _explain(self) -> tuple[int, str]:
        """Prints how the job failed, if it did; returns the exit code and why."""

    def _close(self) -> None:  # noqa: B027
        """Gives back what _prepare() has made, also if it has not come to its end."""

    @abc.abstractmethod
    def _processes_of_job(self) -> list[RankProcess]:
        """Returns what the exit report tells of."""

    @abc.abstractmethod
    def _ended(self, process: RankProcess) -> None:
        """Handles the end of a process."""

    @abc.abstractmethod
    def _escalations(self) -> list[Escalation]:
        """Returns by which steps the processes that run are ended, if they have to be."""

    def _leaves_no_time(self) -> bool:
        """Whether a signal that ends the job kills its processes at once."""
        return self._stopping is not None

    # What happens.

    def _wait(self, deadlines: Iterable[float | None]) -> None:
        """Waits for output, a signal, anything else that is watched, or a deadline of the job."""
        now = time.monotonic()
        steps = [due for escalation in self._escalations() for due in escalation.due()]
        times = (self._merger.tick(now), *self._held_until(now), *deadlines, *steps)
        limits = [when - now for when in times if when is not None]
        if (seconds := self._connections.prepare()) is not None:
            limits.append(seconds)
        for key, _ in self._selector.select(max(0.0, min(limits)) if limits else None):
            self._handle_event(key)
        self._connections.tick()

    def _held_until(self, now: float) -> list[float]:
        """Shows what was held back for long enough; returns when to look again."""
        held = [(n, p, p.held.due) for n, p in self._running.items() if p.held.due is not None]
        if self._leaves_no_time():
            return []
        for number, process, due in held:
            if due <= now:
                self._release(number, process)
        return [due for _, _, due in held if due > now]

    def _handle_event(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, SignalWatch):
            for number in key.data.read():
                self._handle_signal(number)
        elif isinstance(key.data, Host):
            self._connections.handle(key)

    def _on_output(self, host: Host, number: int, name: str, data: bytes) -> None:
        process, now = self._running.get(number), time.monotonic()
        if process is None:  # ssh has said it, or the agent itself
            self._note(f"host {host.name}: {data.decode(errors='replace')}")
            return
        failed = self._stopping is None and self._leaves_no_time()
        if not failed and process.held.goes_on(data, now):
            self._release(number, process)
            process.goes_on()
        process.record_output(name, data, now)
        if name == "stderr" and self._options.folds:
            data = process.held.take(data, now)
        if data:
            self._merger.feed(self._streams[number][name], data, now)

    def _release(self, number: int, process: RankProcess) -> None:
        """Shows what is held back of the error output of a process."""
        if data := process.held.release():
            self._merger.feed(self._streams[number]["stderr"], data, time.monotonic())

    def _reap(self) -> None:
        """Handles the ends of processes."""
        for number, process in list(self._running.items()):
            code = process.connection.poll(number)
            if code is None:
                continue
            process.code, process.ended_at = code, time.monotonic()
            self._settle(number, process)
            del self._running[number]
            for stream in self._streams.pop(number).values():
                self._merger.finish(stream)
            self._ended(process)

    def _settle(self, number: int, process: RankProcess) -> None:
        """Shows what is held back of a process that has ended, except the error that has ended it.

        A killed process may not have failed before; a stopped rank's error mostly says just that.
        """
        assert process.code is not None
        error = error_of(process)
        ended_by_error = process.code not in (0, self._options.stopped_exit_code) and (
            process.code > 0 or (error is not None and self._is_known(process, error))
        )
        if not ended_by_error:
            self._release(number, process)
        elif data := process.held.settle():
            self._merger.feed(self._streams[number]["stderr"], data, time.monotonic())

    def _is_known(self, process: RankProcess, error: ProgramError) -> bool:
        """Whether an error only follows from others, or a process that has failed has the same."""
        line = of_any_rank(error.line(), process.rank)
        others = [one for one in self._processes_of_job() if one.failed() and one is not process]
        known = [of_any_rank(e.line(), o.rank) for o in others if (e := error_of(o)) is not None]
        return error.follows or line in known

    def _on_silent(self, host: Host) -> None:
        self._note(
            f"host {host.name} gave no sign of life for {host.lease:g} s and is regarded as lost. "
            f"If it still runs, its agent ends its {self.noun} by itself"
        )
        self._files.event("host_silent", host=host.name, seconds=host.lease)

    def _handle_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._suspend()
        if number in (*ENDING, *PASSED_ON):
            self._signal_all(number)
            self._files.event("signal", signal=signal_name(number))
        if number not in ENDING:
            return
        at_once, self._stopping = self._leaves_no_time(), number
        now, wait = time.monotonic(), self._options.stop_timeout
        if not at_once and not self._starting:
            self._note(
                f"{signal_name(number)} was passed on to all {self.noun}, which have {wait:g} s to "
                f"end; {second_signal_text(number)}"
            )
        for escalation in self._escalations():
            escalation.kill(now if at_once else now + wait)

    def _signal_all(self, number: int) -> None:
        for process in self._running.values():
            process.signal(number)

    def _suspend(self) -> None:
        """Stops the processes and this one, as the terminal asked (Ctrl-Z), until it goes on.

        They have sessions of their own, so the terminal stops none of them; and as their process
        groups have no parent in their sessions, SIGTSTP would not stop them either. The time until
        it goes on does not count where processes have to end.
        """
        self._signal_all(signal.SIGSTOP)
        self._connections.hold()
        stopped_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGSTOP)
        for escalation in self._escalations():
            escalation.postpone(time.monotonic() - stopped_at)
        self._signal_all(signal.SIGCONT)

    # What starts.

    def _start_process(
        self, host: Host, slot: Slot, rank: int, variables: Mapping[str, str], **more: object
    ) -> RankProcess:
        """Has a process started, under the number of its slot's rank.

        `rank` is the prefix of its output, -1 if it has none yet. For `more` see protocol.py.
        """
        job = {
            "argv": self._options.argv,
            "env": dict(variables),
            "cwd": self._options.folder or os.getcwd(),
            "bind_to": self._options.bind_to,
            "local_rank": slot.local_rank,
            "local_size": slot.local_size,
            **more,
        }
        process = RankProcess(slot, host, copy=self._files.copier(slot.rank))
        self._running[slot.rank] = process
        self._streams[slot.rank] = {n: self._merger.add(rank, n) for n in ("stdout", "stderr")}
        host.start(slot.rank, json.dumps(job).encode())
        host.flush()
        return process

    def _note_errors(self, ended: Mapping[str, RankProcess]) -> None:
        """Shows the errors of processes that were asked to end, by their names in messages.

        An error that says just that they were asked is left out.
        """
        told = set()
        for who, process in ended.items():
            error = error_of(process) if process.held.kept else None
            if error is not None and not error.follows and error.line() not in told:
                told.add(error.line())
                self._note(error.sentence(who))
                self._note_traceback(process)

    def _note_traceback(self, process: RankProcess) -> None:
        """Shows the traceback that has ended a process, if nobody has seen it."""
        if lines := unshown(process):
            self._merger.note("\n".join(f"    {line}" for line in lines))

    def _note(self, text: str) -> None:
        self._merger.note(f"tfring run: {text}")
