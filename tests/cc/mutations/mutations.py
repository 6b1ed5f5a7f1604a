"""Mistakes that tests have to find, and what builds them into copies of the runtime's sources.

    mutations.py sources            the sources that have mistakes, one a line
    mutations.py names              the mistakes, one a line
    mutations.py write FOLDER       writes the sources with all mistakes, each behind MUTATED(name)
    mutations.py run NAME FOLDER    runs the test that has to find the mistake; FOLDER has programs

A mistake is exact text of a source and what takes its place. `write` fails unless the text occurs
exactly once. TFRING_MUTATION names the mistake that a program makes; without it there is none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RUNTIME = ROOT / "ops/runtime"
# The longest that a test takes which does not find the mistake because it hangs.
LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Edit:
    """`right` of a file below ops/runtime/, a whole statement or an expression, becomes `wrong`.

    `before` is the text in front of `right`, where that alone occurs more than once.
    """

    file: str
    right: str
    wrong: str
    before: str = ""


@dataclass(frozen=True)
class Test:
    """A program and its arguments, and what it prints when it finds the mistake.

    Where that is empty the program may also crash or hang.
    """

    program: str
    arguments: tuple[str, ...]
    finds: str = ""

    def but(self, finds: str, *more: str) -> Test:
        return Test(self.program, (*self.arguments, *more), finds)


@dataclass(frozen=True)
class Mutation:
    name: str
    test: Test
    edits: tuple[Edit, ...]


ARENA = Test(
    "mutated_tests",
    ("arena_collective_test.RandomPlansOfRandomMembersGiveTheRightBits",),
    "FAILED backend/arena",
)
LOCKED = Test("mutated_sim", ("--workload=locked", "--ranks=3"))
JOBS = Test("mutated_membership_sim", ())


def _rule(name: str, case: str, *edits: Edit) -> Mutation:
    """What has to hold between the framework's stream, ours and the memory of calls."""
    return Mutation(name, Test("mutated_tests", (f"nccl_rules_test.{case}",)), edits)


def _job(name: str, file: str, right: str, wrong: str, seeds: int, finds: str) -> Mutation:
    """A mistake in the machines of elastic jobs, which their simulator has to find."""
    test = JOBS.but(finds, f"--seeds={seeds}")
    return Mutation(name, test, (Edit(f"membership/{file}", right, wrong),))


def _lock(name: str, finds: str, arguments: str, *edits: Edit) -> Mutation:
    """A mistake in locks or the autotuner, which the simulator has to find."""
    return Mutation(f"lock_{name}", LOCKED.but(finds, *arguments.split()), edits)


def _arena(name: str, file: str, *edits: tuple[str, str]) -> Mutation:
    changes = tuple(Edit(f"backend/arena/arena_{file}.cc", *edit) for edit in edits)
    return Mutation(f"arena_{name}", ARENA, changes)


MUTATIONS = (
    # Nothing is wrong: each program passes.
    Mutation("none_tests", Test("mutated_tests", ("nccl_rules_test.",)), ()),
    Mutation("none_arena", Test(ARENA.program, ARENA.arguments), ()),
    Mutation("none_sim", LOCKED.but("", "--seeds=20"), ()),
    Mutation("none_membership", JOBS.but("", "--seeds=20"), ()),
    # Our stream does not wait for the framework's.
    _rule(
        "missing_ready_event",
        "InputsAndOutputsThatAreStillWrittenAreWaitedFor",
        Edit("backend/nccl/launcher.cc", "stream.LetWait(stream_)", "OkStatus()"),
    ),
    # The framework's stream does not wait for ours, although the call is early.
    _rule(
        "early_without_event",
        "InputsAndOutputsThatAreStillWrittenAreWaitedFor",
        Edit("backend/nccl/launcher.cc", "CudaStream::Of(call).WaitFor(**event)", "OkStatus()"),
    ),
    # Scratch goes back when the host is through, as memory of the framework's allocator would.
    _rule(
        "scratch_of_the_framework",
        "ScratchLivesAsLongAsTheDeviceUsesIt",
        Edit(
            "backend/nccl/launcher.cc",
            "return LetCallsFollow(collective);",
            "return scratch_ = nullptr, scratch_bytes_ = 0, LetCallsFollow(collective);",
        ),
        Edit(
            "backend/cuda/device.cc",
            "scratch_.emplace(bytes, memory);",
            "(void)bytes, cu().MemFree(memory);",
        ),
    ),
    # Nobody holds the call's memory while the device works.
    _rule(
        "dropped_reference",
        "TheCallsMemoryIsHeldUntilTheDeviceIsThrough",
        Edit(
            "backend/nccl/flight_table.cc",
            "collective.device_calls",
            "decltype(collective.device_calls){}",
            before=".calls = ",
        ),
        Edit(
            "backend/nccl/nccl_worker.cc",
            "std::move(item->collective.device_calls)",
            "decltype(item->collective.device_calls){}",
            before="InUse{",
        ),
    ),
    # Memory that a hanging device may use goes when the call has ended.
    _rule(
        "freed_after_a_hanging_abort",
        "MemoryThatAHangingDeviceMayUseIsNeverFreed",
        Edit("backend/nccl/nccl_worker.cc", "KeepMemoryForever(used);", "(void)used;"),
    ),
    # Only host functions say that the device is through.
    _rule(
        "no_watchdog",
        "TheEndIsSeenWithoutHostFunctions",
        Edit(
            "backend/cuda/device_waiter.cc",
            "std::chrono::nanoseconds(kWatchdog)",
            "std::chrono::nanoseconds(3600 * kSecond)",
        ),
    ),
    # A remote error of NCCL looks like one of this rank's own.
    _rule(
        "blames_itself",
        "ARemoteErrorSuspectsAnUnknownPeer",
        Edit("backend/nccl/nccl_worker.cc", "status.code() == StatusCode::kUnavailable", "false"),
    ),
    # Rank 1 takes the newest collective first.
    _rule(
        "wrong_order",
        "AllRanksKeepTheGlobalOrderAmongCommunicators",
        Edit(
            "backend/nccl/nccl_worker.cc",
            "queue_.push_back(std::move(item));",
            "options_.self == 1 ? queue_.push_front(std::move(item))"
            " : queue_.push_back(std::move(item));",
        ),
    ),
    # The state is taken from rank 0, not from the member that is ahead.
    _job(
        "root_is_rank_0",
        "coordinator_rounds.cc",
        "record.root = static_cast<Rank>(record.members.size()) - 1;",
        "record.root = 0;",
        300,
        "the record says",
    ),
    # A number comes twice if the generation that had it did not train.
    _job(
        "number_reused",
        "coordinator_rounds.cc",
        "++number_;",
        "if (number_ == 0 || ran_) ++number_, ran_ = false;",
        150,
        "another record of",
    ),
    # A member is stopped at once when workers come or go.
    _job(
        "join_at_once",
        "coordinator_rounds.cc",
        "pending_ = true;",
        'return StartRound("a change", true);',
        150,
        "ends without a failure",
    ),
    # A worker that has to leave does, whatever its state.
    _job(
        "state_leaves",
        "coordinator_rounds.cc",
        "kept_ = AheadOfAllThatStay();",
        "kept_ = kNobody;",
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
        "fence_ignored",
        "worker.cc",
        "Leave(WorkerState::kFenced, kExitTryAgain, std::move(command.reason), effects);",
        "(void)effects;",
        150,
        "goes on although it was fenced",
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
    # Mistakes in what uses the machines of elastic jobs.
    Mutation(
        "no_gate",
        JOBS.but("has other weights at the end", "--seeds=100", "--sabotage=no-gate"),
        (),
    ),
    Mutation(
        "keep_cursor",
        JOBS.but("goes on with sample", "--seeds=100", "--sabotage=keep-cursor"),
        (),
    ),
    # A lock ends at the greatest number of batches that a rank has entered.
    _lock(
        "cut_at_the_greatest",
        "FAILED",
        "--seeds=100",
        Edit("protocol/locked/lock_coordinator.cc", "unlock.entered = UINT64_MAX;", "unlock.entered = 0;"),
        Edit(
            "protocol/locked/lock_coordinator.cc",
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
            "protocol/negotiation/sequencer_lock.cc",
            "number < ranks.entered(rank)",
            "number < unlock.entered",
        ),
    ),
    # Requests that were under way when the lock was made count although their calls were entered.
    _lock(
        "reads_early_requests",
        "FAILED",
        "--seeds=150",
        Edit("protocol/engine/engine_lock.cc", "kept.early", "false"),
    ),
    # A rank takes a lock of another attempt.
    _lock(
        "of_another_attempt",
        "FAILED",
        "--ranks=2 --seeds=2500",
        Edit(
            "protocol/negotiation/participant_lock.cc",
            "lock.attempt != AttemptOf(kGlobalProcessSet)",
            "false",
        ),
    ),
    # A rank does not say that it does not enter a batch.
    _lock(
        "without_voids",
        "deadlock",
        "--seeds=100",
        Edit(
            "protocol/negotiation/participant_lock.cc",
            "number < unlock.high",
            "number < entered",
        ),
    ),
    # A call that was recalled ends while the backend has its memory.
    _lock(
        "frees_memory",
        "ended while its memory is used",
        "--seeds=400",
        Edit("protocol/engine/engine.cc", "busy_.count(id) > 0", "false"),
    ),
    # Nothing ends a lock in which ranks wait.
    _lock(
        "without_timer",
        "deadlock",
        "--seeds=300",
        Edit("protocol/locked/locked_schedule.cc", "lock != nullptr && lock->waits()", "false"),
    ),
    # A goodbye is answered before the lock is over.
    _lock(
        "answers_goodbyes",
        "FAILED",
        "--seeds=1000 --fault=goodbye",
        Edit("protocol/engine/engine_lock.cc", "type != FrameType::kGoodbye", "true"),
    ),
    # Rank 0 does not follow its own change of the pieces.
    _lock(
        "tuning_leaves_rank_0_out",
        "differs from what another member runs",
        "--workload=tuned --seeds=100",
        Edit("protocol/negotiation/negotiator.cc", "piece_bytes_ = *tuning.piece_bytes;", ";"),
        Edit(
            "protocol/negotiation/negotiator.cc",
            "frame.piece_bytes = piece_bytes_;",
            "frame.piece_bytes = *tuning.piece_bytes;",
        ),
    ),
    # New pieces come before the plans that were numbered with the old ones.
    _lock(
        "tuning_before_its_plans",
        "differs from what another member runs",
        "--workload=tuned --seeds=100",
        Edit(
            "protocol/negotiation/negotiator.cc",
            "out_.frames.emplace_back(rank, bytes);",
            "out_.frames.emplace(out_.frames.begin(), rank, bytes);",
        ),
    ),
    # The search goes on in a lock.
    _lock(
        "tuning_in_a_lock",
        "FAILED",
        "--workload=tuned --seeds=400",
        Edit(
            "protocol/negotiation/sequencer_lock.cc",
            "tuner_.active() || !(tuner_.values() == tuned_)",
            "false",
        ),
    ),
    # A rank stages a round although its readers have not read what had the place before.
    _arena("stages_too_early", "exchange", ("staged_ - flows_.depth", "-1", "before = ")),
    # A rank looks one round too short back for what had the place.
    _arena(
        "one_round_more_under_way",
        "exchange",
        ("staged_ - flows_.depth", "staged_ - flows_.depth - 1", "before = "),
    ),
    # A reader does not show what it has read.
    _arena(
        "read_is_not_shown",
        "exchange",
        ("group_.ShowProgress(&ArenaProgress::read, read_);", "(void)0;"),
    ),
    # A writer waits for readers of earlier rounds, which show nothing more.
    _arena(
        "waits_for_those_who_are_through",
        "exchange",
        (
            "flows_.Rounds(flows_.sends[member].bytes) > staged_",
            "flows_.Rounds(flows_.sends[member].bytes) > before",
        ),
    ),
    # A rank waits for what is further ahead, which may wait for it.
    _arena(
        "awaits_the_later_round",
        "exchange",
        ("(staged_ <= read_ || read_ == rounds_in_)", "staged_ > read_"),
    ),
    # A rank reads a round before it is staged.
    _arena("reads_too_early", "exchange", ("read_ == 0", "read_ >= 0")),
    # The last but one round counts as there when the last but two is.
    _arena(
        "reads_a_round_too_early",
        "exchange",
        ("read_ + 1", "read_", "&ArenaProgress::staged, "),
    ),
    # The reader of a lane looks into that of its neighbour.
    _arena("wrong_lane", "exchange", ("flows_.LaneOf(m, self)", "0")),
    # A small part lies in the slot, and its reader looks for it in the header of another plan.
    _arena("wrong_side", "exchange", ("arena.slot(number)", "arena.slot(group_.number())")),
    # A rank does not wait until the readers of an earlier plan have left the slot, or the blocks,
    # or the rounds.
    _arena("takes_the_slot", "collective", ("(Needs(user))", "(false)")),
    _arena("takes_the_blocks", "collective", ("UsesStaging() && Needs(user)", "false")),
    _arena("forgets_rounds", "collective", ("exchange_.stages_rounds()", "false")),
    # The headers of some members are not looked for.
    _arena(
        "meets_too_few",
        "collective",
        ("mover_->BytesFrom(member) > 0", "mover_->BytesFrom(member) > 40"),
    ),
    # A rank does not wait for members that it gives something to, before it uses the place again.
    _arena(
        "forgets_readers",
        "collective",
        ("mover_->BytesTo(member) > 0", "mover_->BytesTo(member) > 40"),
    ),
    # A rank that changes something wakes nobody.
    _arena("wakes_nobody", "group", ("memory_->Notify(rank);", "(void)rank;")),
    # A large allreduce adds up a slice, or takes one, before it is there.
    _arena(
        "adds_too_early",
        "allreduce",
        ("reduced_ + 1", "reduced_", "OthersHave(&ArenaProgress::staged, "),
        ("reduced_ + 1", "reduced_", "FirstBelow(&ArenaProgress::staged, "),
    ),
    _arena(
        "copies_too_early",
        "allreduce",
        ("copied_ + 1", "copied_", "OthersHave(&ArenaProgress::reduced, "),
    ),
    _arena(
        "uses_blocks_too_early",
        "allreduce",
        ("copied_ + kArenaDepth", "reduced_ + kArenaDepth"),
    ),
    # Inputs are added up from the first to the last.
    _arena(
        "another_order",
        "data",
        ("while (left * 2 < count) left *= 2;", "left = count - 1;"),
    ),
)


def _mutated(text: str, file: str) -> str:
    """`text` of `file` with the mistakes of all mutations, each behind its name."""
    places: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for mutation in MUTATIONS:
        for edit in mutation.edits:
            if edit.file == file:
                place = places.setdefault((edit.before, edit.right), [])
                place.append((mutation.name, edit.wrong))
    for (before, right), mistakes in places.items():
        if text.count(before + right) != 1:
            times = text.count(before + right)
            raise SystemExit(f"{before + right!r} occurs {times} times in {file}, not once")
    for (before, right), mistakes in places.items():
        changed = right
        for name, wrong in mistakes:
            if right.endswith(";"):
                changed = f"{{ if (MUTATED({name})) {{ {wrong} }} else {{ {changed} }} }}"
            else:
                changed = f"(MUTATED({name}) ? ({wrong}) : ({changed}))"
        text = text.replace(before + right, before + changed)
    return f'#include "tests/cc/mutations/mutated.h"\n{text}'


def _sources() -> list[str]:
    return sorted({edit.file for mutation in MUTATIONS for edit in mutation.edits})


def _write(folder: Path) -> None:
    for file in _sources():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        text = _mutated((RUNTIME / file).read_text("utf-8"), file)
        (folder / file).write_text(text, "utf-8")


def _run(name: str, folder: Path) -> int:
    mutation = next(each for each in MUTATIONS if each.name == name)
    test = mutation.test
    environment = dict(os.environ)
    if mutation.edits:
        environment["TFRING_MUTATION"] = name
    passes = not mutation.edits and not test.finds
    try:
        process = subprocess.run(
            [folder / test.program, *test.arguments],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        print(f"no end after {LIMIT_SECONDS} s")
        return 0 if not passes and not test.finds else 1
    output = process.stdout + process.stderr
    if passes:
        found = process.returncode == 0
    elif test.finds:
        found = process.returncode == 1 and test.finds in output
    else:
        found = process.returncode != 0
    if not found:
        print(output[-4000:])
        print(f"exit status {process.returncode}", f"expected: {test.finds or 'any failure'!r}")
    return 0 if found else 1


def _main(arguments: list[str]) -> Iterator[str] | int:
    match arguments:
        case ["sources"]:
            return iter(_sources())
        case ["names"]:
            return (mutation.name for mutation in MUTATIONS)
        case ["write", folder]:
            _write(Path(folder))
            return 0
        case ["run", name, folder]:
            return _run(name, Path(folder))
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    done = _main(sys.argv[1:])
    if isinstance(done, int):
        raise SystemExit(done)
    print("\n".join(done))
