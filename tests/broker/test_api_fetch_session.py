"""Fetch sessions over the wire (KIP-227): what an incremental answer contains, and how sessions end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.conftest import OwnBroker, Topic, Wire, batch, code
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

LONG_MS = 15_000


class Session:
    """A reader that counts its epochs."""

    def __init__(self, wire: Wire, topic: Topic, offset: int, *, version: int | None = None) -> None:
        self.wire, self.version = wire, version
        self.first = wire.ask(wire.fetch_request(topic, offset, session_epoch=0), version)
        self.id = self.first.session_id
        self.epoch = 1

    def ask(
        self,
        *topics: FetchTopic,
        forget: Topic | None = None,
        epoch: int | None = None,
        version: int | None = None,
        max_wait_ms: int = 0,
    ) -> Any:
        request = FetchRequest(
            session_id=self.id,
            session_epoch=self.epoch if epoch is None else epoch,
            min_bytes=1,
            max_wait_ms=max_wait_ms,
            topics=list(topics),
        )
        if forget is not None:
            request.forgotten_topics_data = [
                ForgottenTopic(topic=forget.name, topic_id=forget.id, partitions=[0])
            ]
        response = self.wire.ask(request, version or self.version)
        if response.error_code == 0:
            self.epoch += 1
        return response


def at(topic: Topic, offset: int, partition: int = 0) -> FetchTopic:
    asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchTopic(topic=topic.name, topic_id=topic.id, partitions=[asked])


def partitions(response: Any) -> list[Any]:
    return [partition for topic in response.responses for partition in topic.partitions]


def codes(response: Any) -> list[str]:
    return [code(partition) for partition in partitions(response)]


@pytest.fixture
def three(wire: Wire, topic: Topic) -> Topic:
    for _ in range(3):
        wire.produce(topic, batch())
    return topic


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_only_news_is_answered(wire: Wire, three: Topic, version: int) -> None:
    session = Session(wire, three, 3, version=version)
    assert session.id > 0 and codes(session.first) == ["NONE"], "the first answer is complete"
    quiet = session.ask()
    assert (quiet.error_code, quiet.session_id, quiet.responses) == (0, session.id, [])
    wire.produce(three, batch())
    for _ in range(2):  # until the reader moves on, the data is news
        (found,) = partitions(session.ask())
        assert (found.high_watermark, len(found.records)) == (4, len(batch()))
    assert partitions(session.ask(at(three, 4))) == [], "read on, nothing new"


def test_a_moved_watermark_alone_is_news(wire: Wire, three: Topic) -> None:
    session = Session(wire, three, 3)
    wire.produce(three, batch())
    (found,) = partitions(session.ask(at(three, 4)))
    assert (found.high_watermark, len(found.records)) == (4, 0)
    assert partitions(session.ask()) == []


def test_a_quiet_session_waits_and_is_woken(wire: Wire, connect: Callable[[], Wire], three: Topic) -> None:
    session = Session(wire, three, 3)
    request = FetchRequest(session_id=session.id, session_epoch=1, min_bytes=1, max_wait_ms=LONG_MS)
    wire.send(request)
    assert wire.is_silent()
    connect().produce(three, batch())
    (found,) = partitions(wire.receive(10))
    assert found.high_watermark == 4


@pytest.mark.parametrize(
    ("epoch", "version", "expected"),
    [
        (2, None, "INVALID_FETCH_SESSION_EPOCH"),
        (7, None, "INVALID_FETCH_SESSION_EPOCH"),
        (1, 12, "FETCH_SESSION_TOPIC_ID_ERROR"),
    ],
)
def test_a_session_out_of_step(
    wire: Wire, three: Topic, epoch: int, version: int | None, expected: str
) -> None:
    session = Session(wire, three, 3)
    refused = session.ask(epoch=epoch, version=version)
    assert (code(refused), refused.session_id, refused.responses) == (expected, 0, [])
    assert code(session.ask()) == "NONE", "the session is not hurt"


def test_unknown_sessions(wire: Wire) -> None:
    for session_id in (0, 12345):
        response = wire.ask(FetchRequest(session_id=session_id, session_epoch=3, min_bytes=1))
        assert (code(response), response.session_id) == ("FETCH_SESSION_ID_NOT_FOUND", 0)


def test_a_session_is_closed_by_its_reader(wire: Wire, three: Topic) -> None:
    session = Session(wire, three, 3)
    closed = session.ask(at(three, 0), epoch=-1)
    assert (code(closed), closed.session_id, codes(closed)) == ("NONE", 0, ["NONE"])
    assert code(session.ask(epoch=1)) == "FETCH_SESSION_ID_NOT_FOUND"


def test_a_new_session_takes_the_place_of_the_old_one(wire: Wire, three: Topic) -> None:
    session = Session(wire, three, 3)
    renewed = session.ask(at(three, 3), epoch=0)
    assert renewed.session_id not in (0, session.id)
    assert code(session.ask(epoch=1)) == "FETCH_SESSION_ID_NOT_FOUND"


def test_sessionless_requests_never_get_a_session(wire: Wire, three: Topic) -> None:
    assert wire.ask(wire.fetch_request(three, 3)).session_id == 0


def test_forgetting_the_last_partition_ends_the_session(wire: Wire, three: Topic) -> None:
    session = Session(wire, three, 3)
    ended = session.ask(forget=three)
    assert (code(ended), ended.session_id, ended.responses) == ("NONE", 0, [])
    assert code(session.ask()) == "FETCH_SESSION_ID_NOT_FOUND"


def test_partitions_come_and_go(wire: Wire, three: Topic, name: str) -> None:
    other = wire.create(name + "-other")
    session = Session(wire, three, 3)
    (joined,) = session.ask(at(other, 0)).responses
    assert joined.topic_id == other.id, "a partition that joins is answered"
    wire.produce(three, batch())
    wire.produce(other, batch())
    assert {topic.topic_id for topic in session.ask(forget=three).responses} == {other.id}


def test_an_unknown_id_is_told_each_time_until_it_is_forgotten(
    wire: Wire, three: Topic, nowhere: Topic
) -> None:
    session = Session(wire, three, 3)
    assert codes(session.ask(at(nowhere, 0))) == ["UNKNOWN_TOPIC_ID"]
    assert codes(session.ask(max_wait_ms=LONG_MS)) == ["UNKNOWN_TOPIC_ID"]
    assert codes(session.ask(forget=nowhere)) == []


@pytest.mark.parametrize("version", [12, 18])
def test_a_deleted_topic_can_be_forgotten(wire: Wire, three: Topic, name: str, version: int) -> None:
    """Even though its id has no name any more. If it stayed in the session, every fetch would fail at once, forever."""
    doomed = wire.create(name + "-doomed")
    session = Session(wire, three, 3, version=version)
    session.ask(at(doomed, 0))
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=doomed.name)], timeout_ms=9000)
    assert wire.ask(deletion).responses[0].error_code == 0
    (told,) = codes(session.ask(max_wait_ms=LONG_MS))
    assert told in ("UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER")  # Kafka's caches differ in speed
    assert codes(session.ask(forget=doomed)) == []
    assert codes(session.ask()) == []


def test_a_topic_of_the_same_name_is_another_topic(launch: Any) -> None:
    broker: OwnBroker = launch()
    wire = broker.connect()
    old, kept = wire.create("t"), wire.create("kept")
    session = Session(wire, kept, 0)
    session.ask(at(old, 0))
    broker.call(lambda: broker.broker.topics.delete("t"))
    new = wire.create("t")
    wire.produce(new, batch())
    assert codes(session.ask()) == ["INCONSISTENT_TOPIC_ID"]
    assert codes(session.ask(at(new, 0), forget=old)) == ["NONE"]


def test_a_full_cache_serves_without_sessions(launch: Any) -> None:
    wire = launch(max_incremental_fetch_session_cache_slots=1).connect()
    topic = wire.create("t")
    assert Session(wire, topic, 0).id > 0
    second = Session(wire, topic, 0)
    assert (second.id, codes(second.first)) == (0, ["NONE"])


def test_busy_partitions_take_turns(wire: Wire, name: str) -> None:
    """A partition that had data goes to the end of the line, or one of them could starve the others."""
    topic = wire.create(name, 3)
    for index in range(3):
        for _ in range(3):
            wire.produce(topic, batch(), partition=index)
    request = FetchRequest(
        session_epoch=0,
        max_bytes=1,
        min_bytes=1,
        topics=[
            FetchTopic(
                topic_id=topic.id,
                partitions=[FetchPartition(partition=index, partition_max_bytes=1000) for index in range(3)],
            )
        ],
    )
    response = wire.ask(request)
    served = []
    for epoch in range(1, 6):
        served += [p.partition_index for p in partitions(response) if len(p.records)]
        response = wire.ask(
            FetchRequest(session_id=response.session_id, session_epoch=epoch, max_bytes=1, min_bytes=1)
        )
    assert set(served) == {0, 1, 2}
