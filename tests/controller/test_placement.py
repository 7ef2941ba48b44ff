"""Replicas are spread: evenly, over racks, never twice on a broker, never led by a fenced one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.controller.placement import ReplicaPlacer, UsableBroker
from tidelog.errors import RequestError


@st.composite
def clusters(draw: st.DrawFn) -> list[UsableBroker]:
    count = draw(st.integers(1, 9))
    racks = draw(st.integers(1, 4))
    fenced = [draw(st.booleans()) for _ in range(count)]
    fenced[draw(st.integers(0, count - 1))] = False
    return [UsableBroker(broker, f"r{broker % racks}", fenced[broker]) for broker in range(count)]


@given(clusters(), st.data(), st.integers(0, 2**32))
@settings(max_examples=60)
def test_every_placement_keeps_the_rules(brokers: list[UsableBroker], data: st.DataObject, seed: int) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    placer = ReplicaPlacer(brokers, random.Random(seed))
    rack_of = {broker.broker_id: broker.rack for broker in brokers}
    fenced = {broker.broker_id for broker in brokers if broker.fenced}
    for _ in range(20):
        replicas = placer.place(factor)
        assert len(set(replicas)) == factor
        assert replicas[0] not in fenced
        racks = {rack_of[broker] for broker in replicas}
        assert len(racks) == min(factor, len(set(rack_of.values())))


@pytest.mark.parametrize(("racks", "per_rack", "factor"), [(1, 5, 3), (2, 2, 2), (3, 2, 3), (3, 3, 2)])
def test_leaders_and_replicas_are_even_over_equal_racks(racks: int, per_rack: int, factor: int) -> None:
    total = racks * per_rack
    brokers = [UsableBroker(number, f"r{number % racks}", False) for number in range(total)]
    placer = ReplicaPlacer(brokers, random.Random(7))
    placements = [placer.place(factor) for _ in range(total * 6)]
    leaders = Counter(replicas[0] for replicas in placements)
    assert set(leaders.values()) == {6}
    held = Counter(broker for replicas in placements for broker in replicas)
    assert max(held.values()) - min(held.values()) <= 2 * factor


def test_a_failed_brokers_leaderships_do_not_all_go_to_the_same_other_one() -> None:
    """Its followers take turns, with racks and without."""
    for racks in (1, 3):
        brokers = [UsableBroker(number, f"r{number % racks}", False) for number in range(6)]
        placer = ReplicaPlacer(brokers, random.Random(3))
        placements = [placer.place(3) for _ in range(120)]
        for leader in range(6):
            heirs = Counter(replicas[1] for replicas in placements if replicas[0] == leader)
            assert len(heirs) >= 3
            assert max(heirs.values()) <= 14  # of 20


def test_the_only_broker_that_can_lead_leads_everything_and_the_fenced_ones_follow_in_their_racks() -> None:
    brokers = [UsableBroker(number, f"r{number}", number > 0) for number in range(3)]
    placer = ReplicaPlacer(brokers, random.Random(1))
    for _ in range(10):
        replicas = placer.place(3)
        assert replicas[0] == 0
        assert set(replicas) == {0, 1, 2}


def test_the_seed_decides_and_nothing_else() -> None:
    brokers = [UsableBroker(number, None, False) for number in range(6)]
    one, same, other = (
        [ReplicaPlacer(brokers, random.Random(seed)).place(3) for _ in range(1)] for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_too_many_replicas_and_no_leader_are_refused_in_words() -> None:
    with pytest.raises(RequestError, match="only 1 can take replicas"):
        ReplicaPlacer([UsableBroker(0, None, False)], random.Random(0)).place(2)
    with pytest.raises(RequestError, match="every one is fenced"):
        ReplicaPlacer([UsableBroker(0, None, True)], random.Random(0)).place(1)
