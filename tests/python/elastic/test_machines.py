"""The state machines and their messages through the binding."""

from __future__ import annotations

import pytest

from tfring.runtime._native import core

MILLISECOND = 1_000_000
m = core.membership


def worker(number, slot):
    options = m.WorkerOptions()
    options.worker, options.host, options.slot = number, "a", slot
    return m.Worker(options)


def step_worker(machine, now, **fields):
    events = m.WorkerEvents()
    for name, value in fields.items():
        setattr(events, name, value)
    return machine.step(now, events)


def step_coordinator(machine, now, **fields):
    events = m.CoordinatorEvents()
    for name, value in fields.items():
        setattr(events, name, value)
    return machine.step(now, events)


def orders_for(effects):
    return {
        worker: command
        for worker, command in effects.commands
        if command.kind != m.CommandKind.answer
    }


def test_two_workers_form_a_generation_and_lose_one():
    options = m.CoordinatorOptions()
    options.np = options.max_np = 2
    coordinator = m.Coordinator(options)
    effects = step_coordinator(coordinator, 0, hosts=[m.HostSlots("a", 2)])
    assert [(start.worker, start.host, start.slot) for start in effects.starts] == [
        (1, "a", 0),
        (2, "a", 1),
    ]
    workers = {start.worker: worker(start.worker, start.slot) for start in effects.starts}

    def told(now, **fields):
        """The coordinator's orders after all reports."""
        reports = [
            report
            for machine in workers.values()
            for report in step_worker(machine, now, **fields).reports
        ]
        heard = [m.decode_report(m.encode_report(report)) for report in reports]
        return orders_for(step_coordinator(coordinator, now, reports=heard, random=7))

    proposed = told(MILLISECOND, ready=True)
    assert {command.kind for command in proposed.values()} == {m.CommandKind.propose}
    for number, command in proposed.items():
        record = m.decode_command(m.encode_command(command)).record
        assert (record.generation, record.nonce, record.root) == (1, 7, 0)
        assert [member.worker for member in record.members] == [1, 2]
        effects = step_worker(workers[number], MILLISECOND, commands=[command])
        assert effects.connect.generation == 1
    assert coordinator.phase == m.Phase.forming
    went = told(2 * MILLISECOND, connected=1)
    assert {command.kind for command in went.values()} == {m.CommandKind.go}
    for number, command in went.items():
        step_worker(workers[number], 3 * MILLISECOND, commands=[command])
    told(3 * MILLISECOND, synced=m.WorkerEvents.Synced(1, m.Position()))
    assert all(machine.state == m.WorkerState.running for machine in workers.values())
    assert coordinator.phase == m.Phase.running

    ended = m.ProcessEnd(2, 137, "ValueError: x")
    effects = step_coordinator(coordinator, 4 * MILLISECOND, ends=[ended])
    assert effects.notes == [
        "generation 1 ends: worker 2 (host a, slot 1) ended with exit code 137: ValueError: x"
    ]
    end = orders_for(effects)[1]
    assert end.kind == m.CommandKind.end
    assert step_worker(workers[1], 5 * MILLISECOND, commands=[end]).abandon == 1
    assert workers[1].state == m.WorkerState.stopping


def test_a_fenced_worker_leaves_once():
    machine = worker(3, 0)
    step_worker(machine, 0, ready=True)
    excluded = m.Command()
    excluded.kind, excluded.reason = m.CommandKind.excluded, "taken for dead"
    effects = step_worker(machine, 1, commands=[excluded])
    assert (effects.exit.code, effects.exit.reason) == (m.EXIT_TRY_AGAIN, "taken for dead")
    assert machine.next_deadline() == m.NEVER
    assert step_worker(machine, 2, leave=True).exit is None


@pytest.mark.parametrize("message", [b"", b"\x01", b"\xff" * 40, b"\x01" * 400])
def test_bytes_of_no_encoder_are_refused(message):
    with pytest.raises(core.CoreError, match="cannot be read"):
        m.decode_report(message)
    with pytest.raises(core.CoreError, match="cannot be read"):
        m.decode_command(message)


def test_text_that_is_no_utf_8_can_be_read():
    report = m.Report()
    report.worker, report.slot, report.host = 1, 0, b"a\xff"
    assert m.decode_report(m.encode_report(report)).host == "a\ufffd"


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(AttributeError):
        m.CoordinatorOptions().min_mp = 3


def test_a_position_can_be_read():
    assert repr(m.Position(4, 12)) == "commit 4 (step 12)"
