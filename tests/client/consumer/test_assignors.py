"""Assignments: everything is dealt out once, to whoever is subscribed, as evenly as the subscriptions allow; sticky ones move little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.client.consumer.assignors import ASSIGNORS, Assignment, Subscriber
from tidelog.client.metadata import TopicPartition

COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 7), min_size=1, max_size=4)
EAGER = ["range", "roundrobin", "sticky"]


@st.composite
def subscribers(draw: st.DrawFn, *, same: bool = False) -> list[Subscriber]:
    count = draw(st.integers(1, 6))
    shared = draw(st.frozensets(st.sampled_from("abcde"), min_size=1))
    return [
        Subscriber(
            f"m{number}",
            shared if same else draw(st.frozensets(st.sampled_from("abcde"), min_size=1)),
            draw(st.sampled_from([None, f"instance-{9 - number}"])),
        )
        for number in range(count)
    ]


def dealt(shares: Assignment) -> list[TopicPartition]:
    return sorted(tp for share in shares.values() for tp in share)


def assert_dealt_out(members: list[Subscriber], counts: dict[str, int], shares: Assignment) -> None:
    read = {topic for member in members for topic in member.topics}
    assert dealt(shares) == sorted(
        TopicPartition(t, p) for t, n in counts.items() if t in read for p in range(n)
    )
    topics = {member.member_id: member.topics for member in members}
    assert all(tp.topic in topics[member_id] for member_id, share in shares.items() for tp in share)
    assert shares.keys() == topics.keys()


@pytest.mark.parametrize("name", EAGER)
@settings(max_examples=200)
@given(data=st.data())
def test_everything_is_dealt_out_once_to_subscribers(name: str, data: st.DataObject) -> None:
    members, counts = data.draw(subscribers()), data.draw(COUNTS)
    assert_dealt_out(members, counts, ASSIGNORS[name].assign(members, counts))


@pytest.mark.parametrize("name", ["roundrobin", "sticky"])
@settings(max_examples=200)
@given(data=st.data())
def test_members_with_the_same_topics_get_the_same_number(name: str, data: st.DataObject) -> None:
    members, counts = data.draw(subscribers(same=True)), data.draw(COUNTS)
    sizes = [len(share) for share in ASSIGNORS[name].assign(members, counts).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=200)
@given(members=subscribers(), counts=COUNTS)
def test_sticky_is_even_where_it_can_be(members: list[Subscriber], counts: dict[str, int]) -> None:
    """Nobody has two more than somebody who could take one of them."""
    shares = ASSIGNORS["sticky"].assign(members, counts)
    for giver, share in shares.items():
        for tp in share:
            for taker in members:
                if tp.topic in taker.topics:
                    assert len(shares[taker.member_id]) + 1 >= len(share), (giver, taker, tp)


@settings(max_examples=200)
@given(members=subscribers(same=True), counts=COUNTS, data=st.data())
def test_sticky_moves_no_more_than_it_must(
    members: list[Subscriber], counts: dict[str, int], data: st.DataObject
) -> None:
    before = ASSIGNORS["sticky"].assign(members, counts)
    staying = data.draw(st.lists(st.sampled_from(members), min_size=1, unique=True))
    again = [member._replace(owned=tuple(before[member.member_id]), generation=3) for member in staying]
    after = ASSIGNORS["sticky"].assign(again, counts)
    assert_dealt_out(again, counts, after)
    for member in again:
        # Fewer members: each keeps what it had. The same: nothing moves.
        assert set(member.owned) <= set(after[member.member_id])


def test_a_newcomer_gets_its_share_and_the_others_keep_the_rest() -> None:
    counts = {"a": 12}
    old = [Subscriber(f"m{n}", frozenset("a")) for n in range(3)]
    before = ASSIGNORS["sticky"].assign(old, counts)
    owned = [member._replace(owned=tuple(before[member.member_id]), generation=1) for member in old]
    after = ASSIGNORS["sticky"].assign([*owned, Subscriber("m3", frozenset("a"))], counts)
    assert [len(after[f"m{n}"]) for n in range(4)] == [3, 3, 3, 3]
    assert all(set(after[member.member_id]) <= set(member.owned) for member in owned)


@settings(max_examples=200)
@given(members=subscribers(), counts=COUNTS, data=st.data())
def test_cooperative_members_are_never_given_what_another_one_owns(
    members: list[Subscriber], counts: dict[str, int], data: st.DataObject
) -> None:
    everything = [TopicPartition(t, p) for t, n in counts.items() for p in range(n)]
    owned = [
        member._replace(
            owned=tuple(data.draw(st.lists(st.sampled_from(everything), unique=True)) if everything else ()),
            generation=data.draw(st.integers(-1, 2)),
        )
        for member in members
    ]
    shares = ASSIGNORS["cooperative-sticky"].assign(owned, counts)
    for member in owned:
        for tp in shares[member.member_id]:
            assert all(tp not in other.owned for other in owned if other is not member)
    # When all have given up what they were not given again, the next round deals it out; where subscriptions differ, it may move some once more.
    for generation in range(9, 20):
        owned = [m._replace(owned=tuple(shares[m.member_id]), generation=generation) for m in owned]
        before, shares = shares, ASSIGNORS["cooperative-sticky"].assign(owned, counts)
        if shares == before:
            break
    assert_dealt_out(owned, counts, shares)


def test_a_later_claim_beats_an_earlier_one() -> None:
    tp = TopicPartition("a", 0)
    zombie = Subscriber("m0", frozenset("a"), None, (tp,), 3)
    owner = Subscriber("m1", frozenset("a"), None, (tp,), 4)
    assert ASSIGNORS["sticky"].assign([zombie, owner], {"a": 1}) == {"m0": [], "m1": [tp]}


def test_range_gives_neighbours_and_the_same_numbers_of_all_topics() -> None:
    members = [Subscriber(name, frozenset("ab")) for name in ("m1", "m0")]
    assert ASSIGNORS["range"].assign(members, {"a": 3, "b": 3}) == {
        "m0": [TopicPartition(t, p) for t in "ab" for p in (0, 1)],
        "m1": [TopicPartition(t, 2) for t in "ab"],
    }


def test_a_thousand_members_and_ten_thousand_partitions_take_seconds_not_minutes() -> None:
    members = [Subscriber(f"m{n:04}", frozenset(("a", "b"))) for n in range(1_000)]
    counts = {"a": 5_000, "b": 5_000}
    shares = ASSIGNORS["cooperative-sticky"].assign(members, counts)
    assert {len(share) for share in shares.values()} == {10}
