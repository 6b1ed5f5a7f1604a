"""How a rank gets from one generation to the next; and what stands in for that in a static job."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from tfring.elastic import process as processes
from tfring.elastic import state as states
from tfring.elastic.copies import Copies
from tfring.elastic.errors import Dismissed, HorovodInternalError
from tfring.elastic.process import ElasticProcess
from tfring.elastic.state import State
from tfring.runtime import _native, topology
from tfring.runtime.topology import rank

_log = logging.getLogger("tfring")

# So many failures in a row, after the same commit and with all ranks still there, are a fault of
# the program that comes again each time.
_MOST_FAILURES = 3


class Recovery:
    """What elastic.run needs of a job. The ranks of this one stay: a lost rank ends it."""

    def enter(self, state: State) -> None:
        """Makes this process a member of a generation, if it is not yet: init has done it."""

    def exit(self) -> None:
        """Is called when elastic.run ends, in whatever way, after `enter` has been called."""

    def sync(self, state: State) -> None:
        """Gives all ranks the same state. Training begins."""
        states.sync(state)

    def may_go_on(self, error: Exception, state: State) -> bool:
        """Whether an exception only means that this generation is over.

        Here: if all ranks are there, and the program itself has asked for it.
        """
        broken = _native.core.GenerationState.Phase.broken
        return (
            isinstance(error, HorovodInternalError)
            and _native.core.generation_state().phase != broken
        )

    def after_failure(self, state: State) -> None:
        """Goes back to the last commit, and into the next generation."""
        states.restore(state)

    def at_boundary(self, state: State) -> None:
        """Goes into the next generation from a commit at which all ranks have stopped."""

    def finish(self, state: State) -> bool:
        """Waits until all ranks have come to the end; False: training has to go on."""
        return True


class ElasticRecovery(Recovery):
    """An elastic job, in which a coordinator says who is in which generation."""

    def __init__(self, process: ElasticProcess) -> None:
        """Takes this process as a worker of the job."""
        self._process = process
        self._copies = Copies(process)
        self._synced = 0  # the last generation that training has begun in
        self._before = (0, 0)  # failed steps of this generation before func was called
        self._failures = 0  # in a row, with all ranks there, after the commit `_failed_at`
        self._failed_at = -1

    def enter(self, state: State) -> None:
        """See `Recovery.enter`."""
        process = self._process
        if process.runs:
            raise RuntimeError(
                f"rank {rank()}: elastic.run was called within elastic.run: a "
                "process has one training at a time that begins again when the ranks change. Call "
                "the inner function as it is, without elastic.run"
            )
        process.leave_if_dismissed()
        process.link.recovers()
        if process.left:
            process.failed()
        if process.left or not process.in_generation:
            if process.record is not None:  # it has ended since init
                process.stopped()
                self._join()
            else:
                self._join(lambda: self._copies.waiting(state))
        process.runs = True
        state._copies = self._copies

    def exit(self) -> None:
        """See `Recovery.exit`."""
        self._process.runs = False
        self._copies.end()

    def sync(self, state: State) -> None:
        """See `Recovery.sync`."""
        process = self._process
        # Once a generation: a rank that calls elastic.run again would stay out of what others do.
        if process.generation > 1 and process.reset_ended != process.generation:
            process.reset_ended = process.generation
            _end_reset()
        self._before = _failed_steps()
        record = process.record
        assert record is not None
        self._copies.take(state, record)
        states.sync(state)
        self._copies.begin(state, record)
        self._process.position = states.position_of(state)
        self._process.link.synced(self._process.generation, self._process.position)
        self._synced = self._process.generation

    def may_go_on(self, error: Exception, state: State) -> bool:
        """See `Recovery.may_go_on`.

        How the generation stands counts, not the exception: a program may have wrapped it, and
        TensorFlow makes several classes of one cause.
        """
        if self._process.left:  # within elastic.run; it would do so each time
            return False
        health = _native.core.generation_state()
        here, elsewhere = (
            now > before for now, before in zip(_failed_steps(), self._before, strict=True)
        )
        asked = isinstance(error, HorovodInternalError)
        if here and not asked:  # others may have ended the generation for it
            return False
        if health.phase != _native.core.GenerationState.Phase.up or health.lost or health.departed:
            return True
        if not self._process.in_generation:
            return True
        if not elsewhere and not asked:
            return False
        commit = states.position_of(state).commit
        self._failures = self._failures + 1 if commit == self._failed_at else 1
        self._failed_at = commit
        return self._failures < _MOST_FAILURES

    def after_failure(self, state: State) -> None:
        """See `Recovery.after_failure`."""
        process = self._process
        suspect = self._suspect()
        process.abandon("this rank goes back to its last commit")
        process.failed(suspect)
        states.restore(state)
        process.leave_if_dismissed()
        process.stopped()
        self._join()

    def at_boundary(self, state: State) -> None:
        """See `Recovery.at_boundary`."""
        if self._synced != self._process.generation:  # a reset callback wants it: there is none yet
            self.after_failure(state)
            return
        self._process.stopped(boundary=True)
        self._join()

    def finish(self, state: State) -> bool:
        """See `Recovery.finish`."""
        states.finish(state)
        self._process.stopped(done=True)
        try:
            self._process.join()
        except Dismissed as dismissed:
            if dismissed.code == 0:
                self._process.over = True
                return True
            self._process.leave(dismissed)
        return False

    def _join(
        self,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        try:
            self._process.join(waiting)
        except Dismissed as dismissed:
            self._process.leave(dismissed)
        self._before = (0, 0)

    def _suspect(self) -> int:
        """The worker that has ended the generation, as far as this rank knows; 0: unknown."""
        health = _native.core.generation_state()
        if health.phase == _native.core.GenerationState.Phase.up:
            return self._process.worker.worker
        lost, record = health.lost, self._process.record
        known = record is not None and lost and lost[0] < len(record.members)
        return record.members[lost[0]].worker if record is not None and known else 0


def _end_reset() -> None:
    """Waits until all ranks are through their reset callbacks. A collective.

    Horovod's scripts train a batch there, and a rank that has just joined has no callbacks to call:
    as one that has joined (`tfring.join`) it stays out of what the others call meanwhile.
    """
    _native.note_call_site()
    _native.core.join(name="tfring.elastic.end_reset")
    topology.begin_together(0)


def _failed_steps() -> tuple[int, int]:
    """How many steps of this generation have failed here, and how many elsewhere."""
    health = _native.core.generation_state()
    return health.failed_here, health.failed_elsewhere


def present_recovery() -> Recovery:
    """Returns the job that this process is in."""
    process = processes.started()
    if process is None:
        return Recovery()
    if process.over:  # the other members are still there
        _log.warning(
            "elastic.run was called again after the training of this elastic job ended. Ranks no "
            "longer come and go, and a lost rank is an error. To train twice and survive lost "
            "ranks both times, do both in the function that you give to elastic.run."
        )
        return Recovery()
    return ElasticRecovery(process)
