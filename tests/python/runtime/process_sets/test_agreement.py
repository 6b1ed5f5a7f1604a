"""Which process sets the ranks agree on when each proposes its own."""

from __future__ import annotations

import pytest

from tfring.runtime.process_sets.agreement import SetProposal, agree, decode, own_set


def of_ranks(*sets):
    return SetProposal([list(s) for s in sets], [False] * len(sets))


def of_comms(*sets):
    return SetProposal([None if s is None else list(s) for s in sets], [True] * len(sets))


def test_lists_that_are_the_same_everywhere():
    assert agree([of_ranks([0, 1], [2])] * 3) == [[[0, 1]], [[2]]]
    assert agree([of_ranks()] * 2) == []


def test_split_registers_all_parts_in_the_order_of_ranks():
    passed = [of_comms([0, 2]), of_comms([1, 3]), of_comms([0, 2]), of_comms([1, 3])]
    places = agree(passed)
    assert places == [[[0, 2], [1, 3]]]
    assert own_set(places, passed[3], 0) == [1, 3]


def test_null_communicator_stands_for_the_only_set_of_the_others():
    passed = [of_comms([0, 1]), of_comms([0, 1]), of_comms(None)]
    places = agree(passed)
    assert own_set(places, passed[2], 0) == [0, 1]
    passed = [of_comms([0]), of_comms([1]), of_comms(None)]
    assert own_set(agree(passed), passed[2], 0) is None


@pytest.mark.parametrize(
    "passed,words",
    [
        (
            [of_ranks([0]), of_ranks([1])],
            r"set 0 has the ranks \[0\] on rank 0 and \[1\] on rank 1",
        ),
        ([of_ranks([0]), of_ranks()], "rank 0 passed 1 process sets and rank 1 0"),
        ([of_ranks([0]), of_comms([0])], "of ranks on rank 0 and from a communicator on rank 1"),
        ([of_ranks([0, 1])] * 2, "equal to the global process set"),
        ([of_ranks([0], [1], [0])] * 2, "process set 2, .* equal to process set 0"),
        ([of_ranks([2])] * 2, r"names rank 2, but ranks go from 0 to 1"),
        ([of_comms(None), of_comms(None)], "COMM_NULL on every rank"),
        ([of_comms([0, 1]), of_comms(None), of_comms(None)], "rank 1 of them passed COMM_NULL"),
        ([of_ranks(), SetProposal(error="no good")], "rank 1: no good"),
    ],
)
def test_disagreement_names_ranks_and_values(passed, words):
    with pytest.raises(ValueError, match=words):
        agree(passed)


def test_lists_survive_the_wire():
    passed = [of_comms([0, 1], None), of_ranks([1]), SetProposal(error="a\nb")]
    assert [decode(p.encode()) for p in passed] == passed
    assert all(len(p.encode().splitlines()) == 1 for p in passed)
