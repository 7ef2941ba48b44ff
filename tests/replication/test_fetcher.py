"""One fetcher per leader: what it asks for, in which order things happen, and which answers it does not believe."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replication.replica_world import TOPIC_ID, Loop, Peers, Replica
from tidelog.replication.fetcher import SOON_MS, Fetcher, FetcherSettings
from tidelog.replication.partition import Partition
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)


class World:
    def __init__(self, *, durable: bool = False) -> None:
        self.loop = Loop()
        self.peers = Peers()
        self.leader, self.follower = Replica(1), Replica(2, durable=durable)
        for replica in (self.leader, self.follower):
            replica.assign(1, 1, (1, 2))
        self.failed: list[Partition] = []
        self.fetcher = Fetcher(
            1,
            broker_id=2,
            broker_epoch=lambda: 77,
            peers=self.peers,
            scheduler=self.loop,
            clock=self.loop,
            settings=FetcherSettings(backoff_ms=1000),
            on_disk_error=lambda partition, error: self.failed.append(partition),
        )
        self.fetcher.add(self.follower.partition)
        self.loop.turn()

    @property
    def asked(self) -> FetchRequest:
        assert len(self.peers.asked) == 1, "one at a time"
        request: FetchRequest = self.peers.take()
        return request

    def answer(self, data: PartitionData | None, *, session_id: int = 0) -> None:
        responses = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[data])] if data is not None else []
        self.peers.answer(FetchResponse(session_id=session_id, responses=responses))
        self.loop.turn()

    def serve(self, **options: Any) -> None:
        self.answer(self.leader.answer_to(self.follower), **options)


def wanted(request: FetchRequest) -> list[tuple[int, int, int]]:
    return [
        (partition.fetch_offset, partition.current_leader_epoch, partition.last_fetched_epoch)
        for topic in request.topics
        for partition in topic.partitions
    ]


def test_a_request_says_who_asks_in_which_epoch_from_where() -> None:
    world = World()
    request = world.asked
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 77)
    assert wanted(request) == [(0, 1, -1)]
    assert (request.topics[0].topic_id, request.session_epoch) == (TOPIC_ID, 0)


def test_the_next_request_claims_what_came() -> None:
    world = World()
    world.leader.append(3)
    world.serve()
    assert wanted(world.asked) == [(3, 1, 1)]


def test_a_session_names_only_what_has_changed() -> None:
    world = World()
    world.serve(session_id=9)
    assert (world.asked.session_id, world.asked.session_epoch, wanted(world.asked)) == (9, 1, [])
    world.leader.append()
    world.serve(session_id=9)
    assert (world.asked.session_epoch, wanted(world.asked)) == (2, [(1, 1, 1)])
    world.fetcher.remove(world.follower.partition)
    world.answer(None, session_id=9)
    assert world.peers.asked == [], "nothing is left to ask for"


def test_a_session_that_the_leader_forgot_begins_anew_at_once() -> None:
    world = World()
    world.serve(session_id=9)
    world.peers.answer(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    world.loop.turn()
    assert (world.asked.session_epoch, wanted(world.asked)) == (0, [(0, 1, -1)])


def test_a_durable_follower_asks_again_when_what_came_is_synced() -> None:
    world = World(durable=True)
    world.leader.append(2)
    world.serve()
    assert world.peers.asked == []
    world.follower.queue.run()
    world.loop.turn()
    assert wanted(world.asked) == [(2, 1, 1)]


def test_no_answer_is_a_pause_and_a_new_session() -> None:
    world = World()
    world.serve(session_id=9)
    world.peers.answer(None)
    world.loop.turn()
    assert world.peers.asked == []
    world.loop.advance(1.1)
    assert (world.asked.session_epoch, wanted(world.asked)) == (0, [(0, 1, -1)])


def test_an_answer_for_an_earlier_epoch_changes_nothing() -> None:
    """M4: between question and answer this broker was elected, and deposed."""
    world = World()
    world.leader.append(2)
    late = world.leader.answer_to(world.follower)
    world.follower.assign(2, 2)
    world.follower.append(1)
    world.follower.assign(1, 3, partition_epoch=3)
    world.fetcher.add(world.follower.partition)
    world.answer(late)
    assert world.follower.ends == (0, 1)
    assert wanted(world.asked) == [(1, 3, 2)]


def test_a_leaders_log_is_not_cut_by_what_another_said_before() -> None:
    world = World()
    world.follower.assign(2, 2)
    world.follower.append(4)
    world.answer(PartitionData(diverging_epoch=EpochEndOffset(0, 0)))
    assert world.follower.ends[1] == 4


def test_a_fenced_partition_waits_for_newer_metadata() -> None:
    world = World()
    world.answer(PartitionData(error_code=ErrorCode.FENCED_LEADER_EPOCH))
    world.loop.advance(100)
    assert world.peers.asked == []
    world.follower.assign(1, 2, partition_epoch=2)
    world.fetcher.add(world.follower.partition)
    world.loop.turn()
    assert wanted(world.asked) == [(0, 2, -1)]


def test_a_leader_that_does_not_know_it_yet_is_asked_again_soon_and_then_more_seldom() -> None:
    """It is milliseconds behind, and nothing is committed before it is asked."""
    world = World()
    for error in (ErrorCode.UNKNOWN_LEADER_EPOCH, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2):
        world.answer(PartitionData(error_code=error))
        world.loop.advance(SOON_MS / 1000 - 0.001)
        assert world.peers.asked == []
        world.loop.advance(0.002)
    assert wanted(world.asked) == [(0, 1, -1)]


@pytest.mark.parametrize("behind_s", [0.1, 0.4, 2.0])
def test_of_the_time_that_a_leader_was_behind_little_is_lost_again(behind_s: float) -> None:
    world = World()
    questions, began = 0, world.loop.monotonic()
    while world.loop.monotonic() - began < behind_s:
        world.answer(PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        questions += 1
        while not world.peers.asked:
            world.loop.advance(0.001)
    assert world.loop.monotonic() - began < 1.25 * behind_s + 0.02
    assert questions < 30


def test_a_leader_that_never_knows_is_asked_at_the_pace_of_any_trouble() -> None:
    world = World()
    for _ in range(20):
        world.answer(PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        world.loop.advance(1.1)
    world.answer(PartitionData(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    world.loop.advance(0.9)
    assert world.peers.asked == []
    world.loop.advance(0.2)
    assert wanted(world.asked) == [(0, 1, -1)]


def test_damage_is_not_taken_and_asked_for_again_later() -> None:
    world = World()
    world.leader.append(2)
    data = world.leader.answer_to(world.follower)
    assert isinstance(data.records, bytes)
    data.records = data.records[:-1] + bytes((data.records[-1] ^ 1,))
    world.answer(data)
    assert (world.follower.ends, world.peers.asked) == ((0, 0), [])
    world.loop.advance(1.1)
    world.serve()
    assert world.follower.ends[1] == 2


def test_what_the_leader_has_deleted_is_skipped() -> None:
    world = World()
    world.answer(PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=40))
    assert wanted(world.asked) == [(40, 1, -1)]


def test_a_failing_disk_is_told() -> None:
    world = World()
    world.leader.append(1)
    world.follower.disk.fail("write")
    world.serve()
    assert world.failed == [world.follower.partition]


def test_a_full_disk_is_a_pause() -> None:
    world = World()
    world.leader.append(1)
    world.follower.disk.fail("write", 28)
    world.serve()
    assert (world.failed, world.peers.asked, world.follower.ends) == ([], [], (0, 0))
    world.loop.advance(1.1)
    world.serve()
    assert world.follower.ends[1] == 1


def test_a_closed_fetcher_takes_nothing_more() -> None:
    world = World()
    world.leader.append(1)
    data = world.leader.answer_to(world.follower)
    world.fetcher.close()
    world.answer(data)
    assert (world.follower.ends, world.peers.asked) == ((0, 0), [])
