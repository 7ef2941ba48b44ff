"""Single steps of the core: rules that are easier to see without a network, and requests that make no sense."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.quorum.table import Always
from tidelog.quorum import events, messages
from tidelog.quorum.core import QuorumCore
from tidelog.quorum.effects import Answer, Committed, Effect, PersistState, Send
from tidelog.quorum.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tidelog.quorum.values import ElectionState, LogEnd, QuorumSettings, SnapshotId, Voters
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import begin_quorum_epoch, end_quorum_epoch, fetch, fetch_snapshot, vote

SETTINGS = QuorumSettings(1, Voters.of((1, 2, 3)), "here")


class StubLog:
    """A log of records of epoch 1 from offset 0 to 9, of which a test may say anything."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.end = LogEnd(1, 10)
        self.synced_offset = 10
        self.high_watermark = 0
        self.latest_snapshot: SnapshotId | None = None

    @property
    def end_offset(self) -> int:
        return self.end.offset

    def end_of_epoch(self, epoch: int) -> LogEnd:
        return LogEnd(1, 10) if epoch == 1 else self.end if epoch == self.end.epoch else LogEnd(-1, -1)

    def epoch_before_start(self) -> int | None:
        return None

    def epoch_at(self, offset: int) -> int | None:
        return 1

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> bytes:
        return b""

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes]:
        raise FileNotFoundError


def granted(core: QuorumCore, effects: list[Effect], now: float) -> list[Effect]:
    """Everybody says yes to what the core has just asked."""
    result: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Send):
            response = messages.vote_response(core.node.state._replace(leader_id=None), granted=True)
            result += core.step(events.Answered(effect.request_id, response), now)
    return result


def leader(log: StubLog, now: float = 0.0) -> QuorumCore:
    core = QuorumCore(SETTINGS, log, Always(0), ElectionState(1))
    asked = core.step(events.Started(), now)
    votes = granted(core, asked, now)
    granted(core, votes, now)
    assert isinstance(core.node.role, Leader)
    log.end = LogEnd(2, 11)  # the leader change
    core.step(events.Appended(), now)
    return core


def fetch_of(node_id: int, offset: int, epoch: int, *, leader_epoch: int = 2) -> fetch.FetchRequest:
    settings = QuorumSettings(node_id, SETTINGS.voters, "here")
    return messages.fetch_request(
        settings, epoch=leader_epoch, end=LogEnd(epoch, offset), high_watermark=0, log_start=0
    )


def test_records_of_an_earlier_epoch_are_not_committed_by_counting() -> None:
    """Figure 8 of the Raft paper: a majority has them, and they may still be replaced."""
    log = StubLog()
    core = leader(log)
    effects = core.step(events.Received(1, fetch_of(2, 10, 1)), 0.1)
    assert not any(isinstance(effect, Committed) for effect in effects)
    assert core.node.high_watermark == 0
    # One record of its own epoch on a majority commits everything before it.
    log.synced_offset = 11
    effects = core.step(events.Received(2, fetch_of(2, 11, 2)), 0.2)
    assert Committed(11) in effects


def test_a_leader_counts_itself_only_as_far_as_it_has_synced() -> None:
    core = leader(StubLog())
    effects = core.step(events.Received(1, fetch_of(2, 11, 2)), 0.1)
    assert not any(isinstance(effect, Committed) for effect in effects)
    assert Committed(11) in core.step(events.Received(2, fetch_of(3, 11, 2)), 0.1)


def test_whoever_has_claimed_its_records_before_hears_at_once_that_they_are_committed() -> None:
    """The leader's own sync is the last one: both followers are a majority without it, and the first of them waits already."""
    core = leader(StubLog())
    assert not any(isinstance(e, Answer) for e in core.step(events.Received(1, fetch_of(2, 11, 2)), 0.1))
    answers = {
        effect.token: messages.only_partition(effect.response)
        for effect in core.step(events.Received(2, fetch_of(3, 11, 2)), 0.11)
        if isinstance(effect, Answer)
    }
    assert {token: part.high_watermark for token, part in answers.items()} == {1: 11, 2: 11}
    assert isinstance(core.node.role, Leader)
    assert not core.node.role.parked


@pytest.mark.parametrize("seed", range(50))
def test_a_leader_that_is_abandoned_resigns_at_the_very_moment_that_it_names(seed: int) -> None:
    """Sums and differences of floats do not agree to the last bit: a leader once ticked for ever in the last instant before."""
    rng = Random(seed)
    core = leader(StubLog(), now=rng.uniform(0, 1000))
    while isinstance(core.node.role, Leader):
        now = core.deadline
        core.step(events.Ticked(), now)
        assert core.deadline > now
    assert isinstance(core.node.role, Resigned)


def follower(now: float = 0.0) -> QuorumCore:
    core = QuorumCore(SETTINGS, StubLog(), Always(0), ElectionState(1, 2))
    core.step(events.Started(), now)
    assert isinstance(core.node.role, Follower)
    return core


def test_a_follower_that_did_not_run_does_not_take_that_for_the_leaders_silence() -> None:
    """After a stall of the whole machine every node would ask for votes, and all would get them."""
    core = follower()
    deadline = core.node.role.deadline  # type: ignore[union-attr]
    core.step(events.Ticked(), deadline + 30)
    assert isinstance(core.node.role, Follower)
    # Who is not heard then is gone, however often the node itself is late.
    core.step(events.Ticked(), deadline + 60)
    assert isinstance(core.node.role, Prospective)


def test_a_follower_that_runs_gives_its_leader_no_more_time_than_it_has() -> None:
    core = follower()
    core.step(events.Ticked(), core.node.role.deadline)  # type: ignore[union-attr]
    assert isinstance(core.node.role, Prospective)


def test_a_leader_that_did_not_run_reads_what_came_before_it_resigns() -> None:
    core = leader(StubLog())
    core.step(events.Received(1, fetch_of(2, 11, 2)), 0.1)
    core.step(events.Ticked(), 30.0)
    assert isinstance(core.node.role, Leader)
    core.step(events.Ticked(), 60.0)
    assert isinstance(core.node.role, Resigned)


def test_a_vote_is_an_effect_after_the_state_that_remembers_it() -> None:
    core = QuorumCore(SETTINGS, StubLog(), Always(0.9), ElectionState(1))
    core.step(events.Started(), 0.0)
    candidate = QuorumSettings(2, SETTINGS.voters, "here")
    request = messages.vote_request(candidate, 1, epoch=2, end=LogEnd(1, 10), pre_vote=False)
    persist, answer, *_ = core.step(events.Received(7, request), 0.1)
    assert persist == PersistState(ElectionState(2, None, 2))
    assert isinstance(answer, Answer) and answer.response.topics[0].partitions[0].vote_granted
    # A repeated request gets the same answer, another candidate's does not.
    again = core.step(events.Received(8, request), 0.1)
    assert again[0].response.topics[0].partitions[0].vote_granted  # type: ignore[union-attr]
    other = QuorumSettings(3, SETTINGS.voters, "here")
    request = messages.vote_request(other, 1, epoch=2, end=LogEnd(1, 10), pre_vote=False)
    refused = core.step(events.Received(9, request), 0.1)
    assert not refused[0].response.topics[0].partitions[0].vote_granted  # type: ignore[union-attr]


def test_requests_of_another_cluster_are_refused() -> None:
    core = QuorumCore(SETTINGS, StubLog(), Always(0.9), ElectionState(1))
    core.step(events.Started(), 0.0)
    stranger = QuorumSettings(2, SETTINGS.voters, "elsewhere")
    request = messages.vote_request(stranger, 1, epoch=9, end=LogEnd(1, 10), pre_vote=False)
    (answer,) = core.step(events.Received(1, request), 0.1)
    assert isinstance(answer, Answer)
    assert answer.response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert core.node.epoch == 1


ROLES = (Unattached, Follower, Prospective, Candidate, Leader, Resigned)


def in_role(role: type[Any]) -> QuorumCore:
    if role in (Leader, Resigned):
        core = leader(StubLog())
        if role is Resigned:
            core.step(events.Resign(), 0.0)
        return core
    stored = ElectionState(1, 2 if role is Follower else None)
    core = QuorumCore(SETTINGS, StubLog(), Always(0.5 if role is Unattached else 0), stored)
    asked = core.step(events.Started(), 0.0)
    if role is Candidate:
        granted(core, asked, 0.0)
    assert isinstance(core.node.role, role)
    return core


def nonsense(rng: Random) -> Any:
    def number() -> int:
        return rng.choice((-(2**31), -1, 0, 1, 2, 3, 9, 10, 11, 2**31 - 1))

    topic = rng.choice(("__cluster_metadata", "__cluster_metadata", "__cluster_metadata", "orders", ""))
    cluster = rng.choice(("here", "here", None, "elsewhere"))
    parts = rng.choice((1, 1, 1, 1, 0, 2))

    def times(make: Any) -> list[Any]:
        return [make() for _ in range(parts)]

    match rng.randrange(5):
        case 0:
            made = times(
                lambda: vote.RequestPartitionData(
                    rng.choice((0, 0, 1)),
                    number(),
                    number(),
                    last_offset_epoch=number(),
                    last_offset=number(),
                    pre_vote=rng.random() < 0.5,
                )
            )
            return vote.VoteRequest(cluster, number(), [vote.RequestTopicData(topic, made)])
        case 1:
            made = times(lambda: begin_quorum_epoch.RequestPartitionData(0, bytes(16), number(), number()))
            return begin_quorum_epoch.BeginQuorumEpochRequest(
                cluster, number(), [begin_quorum_epoch.RequestTopicData(topic, made)]
            )
        case 2:
            made = times(
                lambda: end_quorum_epoch.RequestPartitionData(0, number(), number(), [number(), number()])
            )
            return end_quorum_epoch.EndQuorumEpochRequest(
                cluster, [end_quorum_epoch.RequestTopicData(topic, made)]
            )
        case 3:
            made = times(
                lambda: fetch.FetchPartition(
                    0, number(), number(), number(), number(), number(), high_watermark=number()
                )
            )
            state = fetch.ReplicaState(number())
            return fetch.FetchRequest(
                cluster, -1, state, number(), topics=[fetch.FetchTopic(topic, partitions=made)]
            )
        case _:
            made = times(
                lambda: fetch_snapshot.RequestPartitionSnapshot(
                    0, number(), fetch_snapshot.SnapshotId(number(), number()), number()
                )
            )
            return fetch_snapshot.FetchSnapshotRequest(cluster, number(), number(), [fetch_snapshot.RequestTopicSnapshot(topic, made)])  # fmt: skip


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.__name__)
def test_whatever_is_asked_is_answered_once_and_harms_nobody(role: type[Any]) -> None:
    rng = Random(role.__name__)
    for _ in range(60):
        core = in_role(role)
        waiting: set[int] = set()
        for token in range(12):
            now = 0.01 * token
            epoch = core.node.epoch
            effects = core.step(events.Received(token, nonsense(rng)), now)
            waiting.add(token)
            for effect in effects:
                if isinstance(effect, Answer):
                    waiting.remove(effect.token)
            parked = core.node.role.parked.values() if isinstance(core.node.role, Leader) else ()
            assert waiting == {fetch.token for fetch in parked}
            assert core.node.epoch >= epoch
