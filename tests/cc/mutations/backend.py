"""Mistakes in the backends: of NCCL, and of arenas."""

from __future__ import annotations

from mutation import Edit, Mutation, Test

ARENA = Test(
    "mutated_tests",
    ("arena_collective_test.RandomPlansOfRandomMembersGiveTheRightBits",),
    "FAILED backend/arena",
)


def _rule(name: str, case: str, *edits: Edit) -> Mutation:
    """What has to hold between the framework's stream, ours and the memory of calls."""
    return Mutation(name, Test("mutated_tests", (f"nccl_rules_test.{case}",)), edits)


def _arena(name: str, file: str, *edits: tuple[str, str]) -> Mutation:
    changes = tuple(Edit(f"runtime/backend/arena/arena_{file}.cc", *edit) for edit in edits)
    return Mutation(f"arena_{name}", ARENA, changes)


MUTATIONS = (
    # Nothing is wrong: the tests pass.
    Mutation("none_tests", Test("mutated_tests", ("nccl_rules_test.",)), ()),
    Mutation("none_arena", Test(ARENA.program, ARENA.arguments), ()),
    # Our stream does not wait for the framework's.
    _rule(
        "missing_ready_event",
        "InputsAndOutputsThatAreStillWrittenAreWaitedFor",
        Edit("gpu/nccl/launcher.cc", "stream.LetWait(stream_)", "OkStatus()"),
    ),
    # The framework's stream does not wait for ours, although the call is early.
    _rule(
        "early_without_event",
        "InputsAndOutputsThatAreStillWrittenAreWaitedFor",
        Edit("gpu/nccl/launcher.cc", "CudaStream::Of(call).SetResults(*event)", "void()"),
    ),
    # The framework's stream waits for ours as soon as the call is launched.
    _rule(
        "waits_at_the_launch",
        "TheFrameworkWaitsWhereItUsesTheResults",
        Edit(
            "gpu/nccl/launcher.cc",
            "return SetResults(collective);",
            "const Status set = SetResults(collective); "
            "for (const DeviceCall& call : collective.device_calls) "
            "(void)CudaStream::Of(call).WaitForResults(); return set;",
        ),
    ),
    # Scratch goes back when the host is through, as memory of the framework's allocator would.
    _rule(
        "scratch_of_the_framework",
        "ScratchLivesAsLongAsTheDeviceUsesIt",
        Edit(
            "gpu/nccl/launcher.cc",
            "return SetResults(collective);",
            "return scratch_ = nullptr, scratch_bytes_ = 0, SetResults(collective);",
        ),
        Edit(
            "gpu/cuda/device.cc",
            "scratch_.emplace(bytes, memory);",
            "(void)bytes, cu().MemFree(memory);",
        ),
    ),
    # Nobody holds the call's memory while the device works.
    _rule(
        "dropped_reference",
        "TheCallsMemoryIsHeldUntilTheDeviceIsThrough",
        Edit(
            "gpu/nccl/flight_table.cc",
            "collective.device_calls",
            "decltype(collective.device_calls){}",
            before=".calls = ",
        ),
        Edit(
            "gpu/nccl/nccl_worker.cc",
            "std::move(item->collective.device_calls)",
            "decltype(item->collective.device_calls){}",
            before="InUse{",
        ),
    ),
    # Memory that a hanging device may use goes when the call has ended.
    _rule(
        "freed_after_a_hanging_abort",
        "MemoryThatAHangingDeviceUsesIsFreedWhenItHasFinished",
        Edit(
            "gpu/cuda/device_waiter.cc",
            "std::move(end.wait.keeps)",
            "nullptr",
            before="KeepUntil(std::move(end.wait.event), ",
        ),
    ),
    # Only host functions say that the device is through.
    _rule(
        "no_watchdog",
        "TheEndIsSeenWithoutHostFunctions",
        Edit(
            "gpu/cuda/device_waiter.cc",
            "std::chrono::nanoseconds(kWatchdog)",
            "std::chrono::nanoseconds(3600 * kSecond)",
        ),
    ),
    # A remote error of NCCL looks like one of this rank's own.
    _rule(
        "blames_itself",
        "ARemoteErrorSuspectsAnUnknownPeer",
        Edit("gpu/nccl/nccl_worker.cc", "status.code() == StatusCode::kUnavailable", "false"),
    ),
    # Rank 1 takes the newest collective first.
    _rule(
        "wrong_order",
        "AllRanksKeepTheGlobalOrderAmongCommunicators",
        Edit(
            "gpu/nccl/nccl_worker.cc",
            "queue_.push_back(std::move(item));",
            "options_.self == 1 ? queue_.push_front(std::move(item))"
            " : queue_.push_back(std::move(item));",
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
