"""Mistakes in what the threads of a rank share, which the simulator of threads has to find."""

from __future__ import annotations

from mutation import Edit, Mutation, Test

LOCK_SIM = Test("mutated_lock_sim", ("--seeds=300",))


def _threads(name: str, finds: str, *edits: Edit, arguments: str = "") -> Mutation:
    return Mutation(f"threads_{name}", LOCK_SIM.but(finds, *arguments.split()), edits)


MUTATIONS = (
    # Nothing is wrong: the runs pass.
    Mutation("none_threads", LOCK_SIM.but("", "--seeds=20"), ()),
    # Callbacks that wait go where others come.
    _threads(
        "lose_callbacks",
        "wait for ever",
        Edit(
            "runtime/process/completions.cc",
            "std::move(calls.begin(), calls.end(), std::back_inserter(queue_->calls));",
            "queue_->calls = std::move(calls);",
        ),
    ),
    # A thread that leaves some callbacks to others leaves those, too, that it has run.
    _threads(
        "repeat_callbacks",
        "has ended twice",
        Edit("runtime/process/completions.cc", "std::move(*next++)", "FinishedCall(*next++)"),
        Edit(
            "runtime/process/completions.cc",
            "std::make_move_iterator(next)",
            "std::make_move_iterator(taken.begin())",
        ),
    ),
    # The collective that was submitted last runs first.
    _threads(
        "run_the_last_first",
        "which is not next",
        Edit(
            "runtime/backend/collective_queue.cc",
            "queue_.push_back(std::move(collective));",
            "queue_.push_front(std::move(collective));",
        ),
    ),
    # Two threads run one task.
    _threads(
        "share_a_task",
        " at once",
        Edit("runtime/thread_pool/task_scheduler.cc", "!next.work || next.running", "!next.work"),
    ),
    # A rank enters batches of a lock after it has said how many it enters.
    _threads(
        "enter_after_the_end",
        "of a lock that was over",
        Edit(
            "runtime/protocol/negotiation/locked_calls.cc",
            "Locked() && schedule_->Has(cache_id)",
            "schedule_ != nullptr && schedule_->Has(cache_id)",
        ),
        Edit(
            "runtime/protocol/locked/locked_schedule.cc", "frozen_ || missing_ > 0", "missing_ > 0"
        ),
    ),
    # Callbacks run with the mutex of the pool.
    _threads(
        "call_back_with_the_mutex",
        "with a mutex held",
        Edit("runtime/thread_pool/thread_pool.cc", "lock->unlock();", "if (last) lock->unlock();"),
        Edit("runtime/thread_pool/thread_pool.cc", "lock->lock();", "if (last) lock->lock();"),
    ),
    # The control thread looks at its queues before it says that it sleeps.
    _threads(
        "sleep_unseen",
        "wait for ever",
        Edit(
            "runtime/process/control_loop.cc",
            "transport_->Wait(nothing ? deadline : 0, events);",
            "if (!nothing) deadline = 0; asleep_.store(true); transport_->Wait(deadline, events);",
        ),
        Edit(
            "runtime/process/control_loop.cc",
            "asleep_.store(true);",
            "(void)asleep_;",
            before="deadline = SleepsUntil();\n    ",
        ),
    ),
    # A thread that has taken a step does not look for calls that others made meanwhile.
    _threads(
        "look_once",
        "a step of rank",
        Edit(
            "runtime/process/control_loop.cc",
            "stepped_for_it_ = true;",
            "stepped_for_it_ = true; "
            "if (finished_ || engine_.next_deadline() < sleeps_until_) WakeIfAsleep(); return;",
        ),
    ),
    # The control thread sleeps on although a lock has a time limit now.
    _threads(
        "forget_the_limit",
        "a step of rank",
        Edit("runtime/process/control_loop.cc", "engine_.next_deadline() < sleeps_until_", "false"),
    ),
    # A caller leaves work to the pool and wakes nobody.
    _threads(
        "leave_silently",
        "wait for ever",
        Edit("runtime/thread_pool/thread_pool.cc", "shared->scheduler.Wakes()", "false"),
    ),
    # A thread takes a step after the end.
    _threads(
        "step_after_the_end",
        "",
        Edit("runtime/process/control_loop.cc", "!lock.owns_lock() || over_", "!lock.owns_lock()"),
        arguments="--fault=abandon --seeds=2500",
    ),
    # The control thread sleeps on although a collective has failed.
    _threads(
        "failure_unheard",
        "a step of rank",
        Edit(
            "runtime/process/control_loop.cc",
            "!succeeded || (leaving && !launched) || awaits_end_",
            "(leaving && !launched) || awaits_end_",
        ),
        arguments="--fault=death",
    ),
    # The control thread of a rank that leaves sleeps on although its last plan has ended.
    _threads(
        "leave_unheard",
        "although nobody was late",
        Edit(
            "runtime/process/control_loop.cc",
            "!succeeded || (leaving && !launched) || awaits_end_",
            "!succeeded || awaits_end_",
        ),
        arguments="--fault=shutdown --seeds=1000",
    ),
)
