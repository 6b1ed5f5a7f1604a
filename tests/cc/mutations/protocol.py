"""Mistakes in the state machines of jobs and of elastic jobs, which simulators have to find."""

from __future__ import annotations

from mutation import Edit, Mutation, Test

LOCKED = Test("mutated_sim", ("--workload=locked", "--ranks=3"))
JOBS = Test("mutated_membership_sim", ())


def _job(name: str, file: str, right: str, wrong: str, seeds: int, finds: str) -> Mutation:
    """A mistake in the machines of elastic jobs, which their simulator has to find."""
    test = JOBS.but(finds, f"--seeds={seeds}")
    return Mutation(name, test, (Edit(f"runtime/membership/{file}", right, wrong),))


def _lock(name: str, finds: str, arguments: str, *edits: Edit) -> Mutation:
    """A mistake in locks, which the simulator has to find."""
    return Mutation(f"lock_{name}", LOCKED.but(finds, *arguments.split()), edits)


MUTATIONS = (
    # Nothing is wrong: the runs pass.
    Mutation("none_sim", LOCKED.but("", "--seeds=20"), ()),
    Mutation("none_membership", JOBS.but("", "--seeds=20"), ()),
    # The state is taken from rank 0, not from the member that is ahead.
    _job(
        "root_is_rank_0",
        "coordinator_rounds.cc",
        "record.root = static_cast<Rank>(record.members.size()) - 1;",
        "record.root = 0;",
        300,
        "the record says",
    ),
    # A number comes twice, half of the time.
    _job(
        "number_reused",
        "coordinator_rounds.cc",
        "++last_generation_;",
        "if (last_generation_ == 0 || random % 2 == 0) ++last_generation_;",
        150,
        "another record of",
    ),
    # A member is stopped at once when workers come or go.
    _job(
        "join_at_once",
        "coordinator_rounds.cc",
        "run->change_pending = true;",
        'return StartRound("a change", true);',
        150,
        "ends without a failure",
    ),
    # A worker that has to leave does, whatever its state.
    _job(
        "state_leaves",
        "coordinator_rounds.cc",
        "handover_.giver = AheadOfAllThatStay();",
        "handover_.giver = kNobody;",
        150,
        "has to leave with commit",
    ),
    # Leases are judged by the time that reports show, which is of the members' clocks.
    _job(
        "members_clock",
        "coordinator.cc",
        "process.heard = now_;",
        "process.heard = report.sent_at;",
        20,
        "is taken for dead, although",
    ),
    # A worker is taken for dead for its silence, although its launcher would report its end.
    _job(
        "silence_is_death",
        "coordinator.cc",
        "process.started && hosts_.Has(process.place)",
        "!process.started && hosts_.Has(process.place)",
        150,
        "although its process lives",
    ),
    # A result of a generation that is over is applied.
    _job(
        "stale_result",
        "worker.cc",
        "state_ == WorkerState::kRunning && generation == record_.generation",
        "state_ == WorkerState::kRunning",
        800,
        "applies a result of generation",
    ),
    # A worker that was taken for dead stays.
    _job(
        "exclusion_ignored",
        "worker.cc",
        "Leave(WorkerState::kExcluded, kExitTryAgain, std::move(command.reason), effects);",
        "(void)effects;",
        150,
        "goes on although it was excluded",
    ),
    # A new generation publishes while a member that was cut off still may.
    Mutation(
        "publish_beside_another",
        JOBS.but("may already", "--seed=1600", "--seeds=900"),
        (Edit("runtime/membership/coordinator.cc", "now_ >= old_leases_end_", "now_ >= 0"),),
    ),
    # A worker is taken for dead as soon as its connection ends.
    _job(
        "cut_off_is_death",
        "coordinator.cc",
        "process.cut_off && lost_host",
        "process.cut_off",
        150,
        "nobody has lost it",
    ),
    # A worker publishes without a lease.
    _job(
        "publish_without_lease",
        "worker.cc",
        "now < lease_end_",
        "now < kNever",
        300,
        "publishes for generation",
    ),
    # A lock ends at the greatest number of batches that a rank has entered.
    _lock(
        "cut_at_the_greatest",
        "FAILED",
        "--seeds=100",
        Edit(
            "runtime/protocol/locked/lock_coordinator.cc",
            "unlock.entered = UINT64_MAX;",
            "unlock.entered = 0;",
        ),
        Edit(
            "runtime/protocol/locked/lock_coordinator.cc",
            "std::min(unlock.entered, frozen->entered)",
            "std::max(unlock.entered, frozen->entered)",
        ),
    ),
    # Calls of batches that are recalled are no requests.
    _lock(
        "forgets_recalled_calls",
        "deadlock",
        "--seeds=100",
        Edit(
            "runtime/protocol/negotiation/sequencer.cc",
            "number < ranks.entered(rank)",
            "number < unlock.entered",
        ),
    ),
    # Requests that were under way when the lock was made count although their calls were entered.
    _lock(
        "reads_early_requests",
        "FAILED",
        "--seeds=150",
        Edit("runtime/protocol/engine/kept_events.cc", "kept.early", "false"),
    ),
    # What a rank copies from its device to the CPU is locked.
    _lock(
        "of_what_is_staged",
        "cannot be locked",
        "--seeds=300",
        Edit(
            "runtime/protocol/negotiation/planner.cc",
            "agreement->request.path == DataPath::kCpu",
            "agreement->request.path != DataPath::kDevice",
        ),
    ),
    # A rank takes a lock of another attempt.
    _lock(
        "of_another_attempt",
        "FAILED",
        "--seeds=1200",
        Edit(
            "runtime/protocol/negotiation/locked_calls.cc",
            "lock.attempt != attempt",
            "false",
        ),
    ),
    # A rank does not say that it does not enter a batch.
    _lock(
        "without_voids",
        "deadlock",
        "--seeds=100",
        Edit(
            "runtime/protocol/negotiation/locked_calls.cc",
            "number < unlock.high",
            "number < entered",
        ),
    ),
    # A call that was recalled ends while the backend has its memory.
    _lock(
        "frees_memory",
        "ended while its memory is used",
        "--seeds=400",
        Edit("runtime/protocol/engine/running_plans.cc", "busy_.count(id) > 0", "false"),
    ),
    # Nothing ends a lock in which ranks wait.
    _lock(
        "without_timer",
        "deadlock",
        "--seeds=300",
        Edit(
            "runtime/protocol/locked/locked_schedule.cc",
            "lock != nullptr && lock->waits()",
            "false",
        ),
    ),
    # A goodbye is answered before the lock is over.
    _lock(
        "answers_goodbyes",
        "FAILED",
        "--workload=steady --seeds=500 --fault=goodbye",
        Edit(
            "runtime/protocol/engine/kept_events.cc",
            "type == FrameType::kGoodbye",
            "false",
            before="type == FrameType::kWithdraw ||\n         ",
        ),
    ),
)
