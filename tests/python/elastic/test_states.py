"""States on one rank: what is saved, restored and kept in place."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tfring.runtime._native")

from tfring.data import DataCursor
from tfring.elastic.errors import HostsUpdatedInterrupt
from tfring.elastic.progress import Ahead, Progress
from tfring.elastic.state import ObjectState, State, finish, position_of, restore


def broadcast(value: Any, root_rank: int = 0) -> Any:
    raise AssertionError("one rank sends nothing")


def test_attributes_are_copied_and_come_back() -> None:
    state: Any = ObjectState(broadcast, lambda: 0, epoch=0, seen=[1], lock=threading.Lock())
    lock = state.lock
    state.epoch, state.other = 1, "is not kept"
    state.seen.append(2)
    state.restore()
    assert (state.epoch, state.seen, state.other) == (0, [1], "is not kept")
    state.seen.append(3)
    state.epoch = 5
    state.commit()
    state.seen.append(4)
    for _ in range(2):  # what was restored is a copy, too
        state.restore()
        assert (state.epoch, state.seen) == (5, [1, 3])
        state.seen.append(5)
    assert state.lock is lock  # cannot be copied


def test_what_cannot_be_copied_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    feed = iter(range(5))
    assert next(feed) == 0
    state: Any = ObjectState(broadcast, lambda: 0, feed=(i for i in feed), epoch=0)
    assert next(state.feed) == 1
    state.commit()
    restore(state)
    assert next(state.feed) == 2  # as the warning says
    [line] = caplog.records
    assert "attribute 'feed' of an elastic state is a generator and cannot" in line.getMessage()


def test_objects_with_a_content_of_their_own_stay_the_same_objects() -> None:
    cursor = DataCursor(100, 10, seed=3, rank=0, size=1)
    cursor.begin()
    state: Any = ObjectState(broadcast, lambda: 0, cursor=cursor)
    begin = cursor.state_dict()
    cursor.commit(2)
    state.commit()
    saved = cursor.state_dict()
    assert saved != begin
    cursor.commit(3)
    state.restore()
    assert state.cursor is cursor and cursor.state_dict() == saved


def test_commits_and_steps_are_counted() -> None:
    state = ObjectState(broadcast, lambda: 0)
    assert position_of(state) == (0, 0)
    state.commit()
    assert position_of(state) == (1, 1)  # a commit holds a step at least
    state.mark_step()
    state.mark_step(2)
    assert position_of(state) == (1, 1)
    restore(state)
    state.mark_step()
    state.commit()
    assert position_of(state) == (2, 2)
    finish(state)
    assert position_of(state) == (3, 2)  # where steps are counted, a commit without one holds none


def test_changes_of_hosts_interrupt_once() -> None:
    state: Any = ObjectState(broadcast, lambda: 0, batch=0)
    state.check_host_updates()
    state.on_hosts_updated(10.0, 1)
    state.batch = 1
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync  # hosts were only removed
    state.commit()
    state.on_hosts_updated(9.0, 2)  # older than what was looked at
    state.commit()
    state.on_hosts_updated(11.0, 1)
    state.on_hosts_updated(12.0, 2)
    state.batch = 7
    commits = position_of(state).commit
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.check_host_updates()
    assert not caught.value.skip_sync
    # It goes on with the current state, which is therefore saved.
    assert position_of(state).commit == commits + 1
    state.batch = 8
    state.restore()
    assert state.batch == 7
    assert state._host_messages.empty() and state._host_messages.qsize() == 0


def test_what_a_class_of_the_users_sends_besides_is_of_the_same_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roots: list[int | None] = []

    def compare(progress: Progress, parts: object, root: int | None = None) -> Ahead:
        roots.append(root)
        return Ahead(0, False, progress)

    monkeypatch.setattr("tfring.elastic.state.compare", compare)

    class WithTable(ObjectState):
        def sync(self) -> None:
            super().sync()  # and sends a table from rank 0

    ObjectState(broadcast, lambda: 0).sync()
    WithTable(broadcast, lambda: 0).sync()
    assert roots == [None, 0]


def test_reset_callbacks_are_called_in_order() -> None:
    called: list[str] = []

    class Mine(State):
        def reset(self) -> None:
            called.append("reset")

    state = Mine()
    state.register_reset_callbacks([lambda: called.append("first")])
    state.register_reset_callbacks([lambda: called.append("second")])
    state.on_hosts_updated(1.0, 2)
    state.on_reset()
    assert called == ["reset", "first", "second"]
    state.check_host_updates()  # messages from before belong to the ended generation


def test_tensorflow_state_holds_variables() -> None:
    import tensorflow as tf

    from tfring.elastic import TensorFlowState

    variables = [tf.Variable([1.0, 2.0]), tf.Variable(3, dtype=tf.int64)]
    state: Any = TensorFlowState(variables, step=0)
    variables[0].assign([5.0, 6.0])
    state.step = 4
    state.restore()
    assert variables[0].numpy().tolist() == [1.0, 2.0] and state.step == 0
    variables[0].assign_add([1.0, 1.0])
    variables[1].assign(9)
    state.commit()
    variables[0].assign_sub([4.0, 4.0])  # an update in place must not reach what was saved
    variables[0].scatter_nd_update([[0]], [100.0])
    variables[1].assign(1)
    for _ in range(2):
        state.restore()
        assert variables[0].numpy().tolist() == [2.0, 3.0] and int(variables[1]) == 9
        variables[0].assign_add([1.0, 1.0])


def test_tensorflow_state_in_a_session_of_a_finalized_graph() -> None:
    import tensorflow as tf

    from tfring.elastic import TensorFlowState

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session() as session:
        variable = v1.get_variable("v", initializer=[1.0, 2.0], use_resource=False)
        resource = v1.get_variable("r", initializer=3.0, use_resource=True)
        add = [variable.assign_add([1.0, 1.0]).op, resource.assign_add(1.0)]
        session.run(v1.global_variables_initializer())
        graph.finalize()
        state: Any = TensorFlowState(session=session, step=0)
        session.run(add)
        state.commit()
        session.run(add)
        state.restore()
        values = session.run([variable, resource])
    np.testing.assert_array_equal(values[0], [2.0, 3.0])
    assert values[1] == 4.0


def test_keras_state_restores_model_and_optimizer() -> None:
    import keras

    from tfring.elastic import TensorFlowKerasState

    def values() -> list[Any]:
        variables = (*model.weights, *model.optimizer.variables)
        return [v.value.numpy() for v in variables]

    def equal(first: list[Any], second: list[Any]) -> bool:
        return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    model = keras.Sequential(
        [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    )
    with pytest.raises(ValueError, match="has no weights yet"):
        TensorFlowKerasState(model)
    model.build((None, 2))
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=False)
    state: Any = TensorFlowKerasState(model, epoch=0)
    assert state.optimizer is model.optimizer and model.optimizer.built
    x, y = np.ones((8, 2), np.float32), np.zeros((8, 3), np.float32)
    before = values()
    model.fit(x, y, verbose=0)
    state.epoch = 1
    assert not equal(values(), before)
    state.restore()
    assert equal(values(), before) and state.epoch == 0
    model.fit(x, y, verbose=0)
    state.commit()
    saved = values()
    model.fit(x, y, verbose=0)
    assert not equal(values(), saved)
    state.restore()
    assert equal(values(), saved)


def test_what_was_saved_outlives_jitted_updates() -> None:
    import tensorflow as tf

    from tfring.elastic import TensorFlowState

    variable = tf.Variable(tf.zeros([1000]))
    state = TensorFlowState([variable])

    @tf.function(jit_compile=True)
    def update() -> None:
        variable.assign_add(tf.ones([1000]))

    update()
    state.commit()
    for _ in range(3):
        update()
    state.restore()
    np.testing.assert_array_equal(variable, np.ones(1000))


def copied(state: Any, into: Any) -> None:
    """Restores one state from the copy of another one."""
    into._unpack(iter([bytearray(part.read()) for part in state._pack()]))


def test_a_copy_holds_the_last_commit_of_attributes() -> None:
    def state_of(cursor: DataCursor, **more: Any) -> Any:
        return ObjectState(broadcast, lambda: 0, cursor=cursor, **more)

    cursors = [DataCursor(100, 10, seed=3, rank=0, size=1) for _ in range(2)]
    table = np.arange(5000.0)
    state = state_of(cursors[0], table=table, epoch=3)
    cursors[0].begin()
    cursors[0].commit(2)
    state.commit()
    state.epoch = 9
    assert sum(part.length > 30_000 for part in state._pack()) == 1  # beside the pickle
    other = state_of(cursors[1], table=None, epoch=0)
    copied(state, other)
    assert other.epoch == 3 and other.cursor is cursors[1]
    assert cursors[1].state_dict() == cursors[0].state_dict()
    np.testing.assert_array_equal(other.table, table)
    other.table[0] = 5.0  # is its own
