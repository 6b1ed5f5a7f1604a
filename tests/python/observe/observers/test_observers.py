"""How observers begin and end, with fakes."""

from __future__ import annotations

import logging

import pytest

from tfring.observe.observers.observers import Here, Observer, Observers
from tfring.runtime.settings.environment import Settings

HERE = Here(rank=1, size=2, local_rank=1, hosts=["a", "a"], record=None, settings=Settings())


class Fake:
    """Observers that write down what is called, and fail where they are to."""

    def __init__(self, *failing: str) -> None:
        self.said: list[str] = []
        self._failing = failing
        self.observers = Observers([self._make(name) for name in ("a", "b", "c")])

    def _make(self, name: str) -> Observer:
        return Observer(
            name,
            lambda here: self.call(f"{name} begins on {here.rank}"),
            lambda: self.call(f"{name} leaves"),
            lambda: self.call(f"{name} ends"),
            lambda: self.call(f"{name} is over"),
        )

    def call(self, what: str) -> None:
        self.said.append(what)
        if what in self._failing:
            raise LookupError("planted")


def test_observers_end_in_the_other_order_around_the_end_of_the_runtime() -> None:
    fake = Fake()
    for _ in range(2):  # init may follow a shutdown
        fake.said.clear()
        fake.observers.begin(HERE)
        assert fake.said == ["a begins on 1", "b begins on 1", "c begins on 1"]
        fake.said.clear()
        with fake.observers.ending():
            fake.call("the runtime ends")
        ends = [
            "c leaves",
            "b leaves",
            "a leaves",
            "the runtime ends",
            "c ends",
            "b ends",
            "a ends",
        ]
        assert fake.said == ends
        fake.observers.afterwards()
        assert fake.said[len(ends) :] == ["a is over", "b is over", "c is over"]


@pytest.mark.parametrize("what", ["b begins on 1", "b leaves", "b ends", "b is over"])
def test_one_that_fails_is_a_warning_and_keeps_nothing_from_the_others(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake, whole = Fake(what), Fake()
    with caplog.at_level(logging.WARNING, "tfring"):
        for one in (fake, whole):
            one.observers.begin(HERE)
            with one.observers.ending():
                pass
            one.observers.afterwards()
    assert fake.said == whole.said
    assert len(caplog.records) == 1
    assert caplog.text.splitlines()[0].endswith("LookupError: planted")
    assert "b " in caplog.text and caplog.records[0].exc_info is not None


def test_observers_end_also_when_the_runtime_does_not() -> None:
    fake = Fake()
    fake.observers.begin(HERE)
    with pytest.raises(OSError, match="planted"), fake.observers.ending():
        raise OSError("planted")
    assert fake.said[-3:] == ["c ends", "b ends", "a ends"]


def test_an_abandoned_runtime_has_ended_before_and_nothing_is_waited_for() -> None:
    fake = Fake()
    begins: list[Observer] = [
        Observer("quick", lambda here: None, end=lambda: fake.call("quick ends")),
        Observer(
            "slow",
            lambda here: None,
            lambda: fake.call("slow leaves"),
            end=lambda: fake.call("slow ends"),
            drop=lambda: fake.call("slow is dropped"),
        ),
    ]
    observers = Observers(begins)
    observers.begin(HERE)
    observers.drop()
    assert fake.said == ["slow leaves", "slow is dropped", "quick ends"]
    observers.drop()
    with observers.ending():
        pass
    assert len(fake.said) == 3


def test_nothing_has_begun_and_nothing_ends() -> None:
    fake = Fake()
    with fake.observers.ending():
        pass
    assert fake.said == []
