"""What the assignors promise, for any members, topics and past."""

from __future__ import annotations

from collections.abc import Mapping
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.group.consumer.assignors import Assignor, Subscriber, range_, uniform
from tidelog.coordinator.group.consumer.member import TopicPartitions

Place = tuple[bytes, int]


def topic(number: int) -> bytes:
    return number.to_bytes(16, "big")


def places(assignment: TopicPartitions) -> set[Place]:
    return {(topic_id, partition) for topic_id, held in assignment.items() for partition in held}


def assigned_again(
    members: list[Subscriber], assignment: Mapping[str, TopicPartitions], *without: str
) -> list[Subscriber]:
    """The same members later, with what they were given."""
    return [
        member._replace(current=assignment.get(member.member_id, {}))
        for member in members
        if member.member_id not in without
    ]


def check_complete(
    members: list[Subscriber], topics: Mapping[bytes, int], result: Mapping[str, TopicPartitions]
) -> None:
    """Every partition that somebody wants is somebody's who wants it, and nobody else's."""
    assert set(result) == {member.member_id for member in members}
    given_out = [place for assignment in result.values() for place in places(assignment)]
    assert len(given_out) == len(set(given_out))
    wanted = {
        (topic_id, partition)
        for topic_id, count in topics.items()
        for partition in range(count)
        if any(topic_id in member.topics for member in members)
    }
    assert set(given_out) == wanted
    for member in members:
        assert set(result[member.member_id]) <= member.topics
        assert all(result[member.member_id].values()), "no topic without a partition"


topic_counts = st.dictionaries(st.integers(1, 6).map(topic), st.integers(1, 12), min_size=1)


@st.composite
def groups(draw: st.DrawFn, *, alike: bool) -> tuple[list[Subscriber], dict[bytes, int]]:
    """Members with some past, which may be of topics that have shrunk, gone, or are no longer wanted, and may overlap."""
    topics = draw(topic_counts)
    known = [*topics, topic(99)]
    everything = draw(st.frozensets(st.sampled_from(known), min_size=1))
    past = st.dictionaries(st.sampled_from(known), st.frozensets(st.integers(0, 14), min_size=1), max_size=3)
    ids = draw(st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8, unique=True))
    return [
        Subscriber(
            member_id,
            draw(st.none() | st.just(f"instance-{member_id}")),
            everything if alike else draw(st.frozensets(st.sampled_from(known))),
            draw(past),
        )
        for member_id in ids
    ], topics


any_group = groups(alike=True) | groups(alike=False)


@pytest.mark.parametrize("assignor", [uniform, range_])
@given(group=any_group)
def test_every_partition_goes_to_exactly_one_who_wants_it(
    assignor: Assignor, group: tuple[list[Subscriber], dict[bytes, int]]
) -> None:
    members, topics = group
    check_complete(members, topics, assignor(members, topics))


@pytest.mark.parametrize("assignor", [uniform, range_])
@given(group=any_group, data=st.data())
def test_the_order_of_the_members_does_not_matter(
    assignor: Assignor, group: tuple[list[Subscriber], dict[bytes, int]], data: st.DataObject
) -> None:
    members, topics = group
    assert assignor(data.draw(st.permutations(members)), topics) == assignor(members, topics)


@given(group=groups(alike=True))
def test_uniform_gives_equal_shares_to_equal_subscriptions(
    group: tuple[list[Subscriber], dict[bytes, int]],
) -> None:
    members, topics = group
    shares = [len(places(assignment)) for assignment in uniform(members, topics).values()]
    assert max(shares) - min(shares) <= 1


@given(group=any_group)
def test_uniform_leaves_nobody_with_what_another_with_two_fewer_could_have(
    group: tuple[list[Subscriber], dict[bytes, int]],
) -> None:
    members, topics = group
    result = uniform(members, topics)
    share = {member_id: len(places(assignment)) for member_id, assignment in result.items()}
    for giver in members:
        for taker in members:
            if share[giver.member_id] >= share[taker.member_id] + 2:
                assert not set(result[giver.member_id]) & taker.topics


@given(group=any_group)
def test_what_is_assigned_once_stays(group: tuple[list[Subscriber], dict[bytes, int]]) -> None:
    members, topics = group
    for assignor in (uniform, range_):
        first = assignor(members, topics)
        assert assignor(assigned_again(members, first), topics) == first


@given(group=groups(alike=True))
def test_uniform_moves_only_what_a_new_member_gets(group: tuple[list[Subscriber], dict[bytes, int]]) -> None:
    members, topics = group
    first = uniform(members, topics)
    newcomer = Subscriber("zz-new", None, members[0].topics, {})
    second = uniform([*assigned_again(members, first), newcomer], topics)
    for member in members:
        kept = places(second[member.member_id])
        assert kept <= places(first[member.member_id]), "nobody gets anything from another old member"


@given(group=groups(alike=True), data=st.data())
def test_uniform_moves_only_what_a_member_had_that_is_gone(
    group: tuple[list[Subscriber], dict[bytes, int]], data: st.DataObject
) -> None:
    members, topics = group
    first = uniform(members, topics)
    gone = data.draw(st.sampled_from(members)).member_id
    rest = assigned_again(members, first, gone)
    if rest:
        second = uniform(rest, topics)
        for member in rest:
            assert places(second[member.member_id]) >= places(first[member.member_id])


@given(group=groups(alike=True))
def test_uniform_moves_nothing_when_a_topic_grows_by_less_than_the_members(
    group: tuple[list[Subscriber], dict[bytes, int]],
) -> None:
    members, topics = group
    first = uniform(members, topics)
    grown = {topic_id: count + 1 for topic_id, count in topics.items()}
    second = uniform(assigned_again(members, first), grown)
    for member in members:
        assert places(second[member.member_id]) >= places(first[member.member_id])


def test_uniform_spreads_each_topic() -> None:
    """Four members, three topics of four partitions: everybody reads one partition of each."""
    wanted = frozenset({topic(1), topic(2), topic(3)})
    members = [Subscriber(name, None, wanted, {}) for name in "abcd"]
    result = uniform(members, dict.fromkeys(wanted, 4))
    assert all(len(held) == 1 for assignment in result.values() for held in assignment.values())


def test_uniform_takes_from_each_topic_in_turn() -> None:
    wanted = frozenset({topic(1), topic(2)})
    everything = dict.fromkeys(wanted, frozenset(range(6)))
    members = [Subscriber("a", None, wanted, everything), Subscriber("b", None, wanted, {})]
    result = uniform(members, dict.fromkeys(wanted, 6))
    assert {len(held) for held in result["b"].values()} == {3}


def test_uniform_gives_topics_that_few_want_to_those_few() -> None:
    members = [
        Subscriber("a", None, frozenset({topic(1), topic(2)}), {}),
        Subscriber("b", None, frozenset({topic(2)}), {}),
    ]
    result = uniform(members, {topic(1): 4, topic(2): 4})
    assert result == {"a": {topic(1): frozenset(range(4))}, "b": {topic(2): frozenset(range(4))}}


@given(group=groups(alike=True), count=st.integers(1, 12))
def test_range_gives_the_same_numbers_of_topics_that_are_partitioned_alike(
    group: tuple[list[Subscriber], dict[bytes, int]], count: int
) -> None:
    members, topics = group
    result = range_(members, dict.fromkeys(topics, count))
    for assignment in result.values():
        assert len(set(assignment.values())) <= 1
        for held in assignment.values():
            assert sorted(held) == list(range(min(held), max(held) + 1)), "a run"


def test_range_gives_a_static_member_the_same_run_after_a_restart() -> None:
    wanted = frozenset({topic(1)})
    before = [Subscriber("m-1", "one", wanted, {}), Subscriber("m-2", "two", wanted, {})]
    after = [Subscriber("m-9", "one", wanted, {}), Subscriber("m-2", "two", wanted, {})]
    assert (
        range_(before, {topic(1): 5})["m-1"]
        == range_(after, {topic(1): 5})["m-9"]
        == {topic(1): frozenset({0, 1, 2})}
    )


# ---- how long it takes: in processor time, with room for a slow and busy machine


def timed(
    assignor: Assignor, members: list[Subscriber], topics: dict[bytes, int]
) -> tuple[float, dict[str, TopicPartitions]]:
    best, result = 1e9, {}
    for _ in range(3):
        began = process_time()
        result = assignor(members, topics)
        best = min(best, process_time() - began)
    return best, result


@pytest.mark.parametrize("assignor", [uniform, range_])
def test_fifty_members_and_two_hundred_partitions_take_a_few_milliseconds(assignor: Assignor) -> None:
    topics = {topic(number): 20 for number in range(10)}
    members = [Subscriber(f"m-{number:04}", None, frozenset(topics), {}) for number in range(50)]
    seconds, result = timed(assignor, members, topics)
    assert seconds < 0.02
    joined = [*assigned_again(members, result), Subscriber("new", None, frozenset(topics), {})]
    seconds, _ = timed(assignor, joined, topics)
    assert seconds < 0.02


@pytest.mark.parametrize("assignor", [uniform, range_])
@pytest.mark.parametrize("topic_count", [1, 100, 1_000])
def test_a_thousand_members_and_ten_thousand_partitions(assignor: Assignor, topic_count: int) -> None:
    topics = {topic(number): 10_000 // topic_count for number in range(topic_count)}
    members = [Subscriber(f"m-{number:04}", None, frozenset(topics), {}) for number in range(1_000)]
    seconds, result = timed(assignor, members, topics)
    assert seconds < 0.6
    check_complete(members, topics, result)
    joined = [*assigned_again(members, result), Subscriber("new", None, frozenset(topics), {})]
    seconds, _ = timed(assignor, joined, topics)
    assert seconds < 0.6


def test_one_member_with_everything_hands_over_half() -> None:
    topics = {topic(number): 10 for number in range(1_000)}
    everything = {topic_id: frozenset(range(10)) for topic_id in topics}
    members = [
        Subscriber("a", None, frozenset(topics), everything),
        Subscriber("b", None, frozenset(topics), {}),
    ]
    seconds, result = timed(uniform, members, topics)
    assert seconds < 0.6
    assert {len(places(assignment)) for assignment in result.values()} == {5_000}


def test_a_thousand_members_with_many_different_subscriptions() -> None:
    """Each wants 30 of 100 topics, in 97 different ways, and everything is with the first twenty members."""
    topics = {topic(number): 100 for number in range(100)}
    members = [
        Subscriber(
            f"m-{number:04}",
            None,
            frozenset(topic((number * 7 + step * (1 + number % 97)) % 100) for step in range(30)),
            {},
        )
        for number in range(1_000)
    ]
    past = uniform(members[:20], topics)
    seconds, result = timed(uniform, assigned_again(members, past), topics)
    assert seconds < 1.5
    check_complete(members, topics, result)
