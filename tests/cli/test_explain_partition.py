"""What is said about a partition for every state that its replicas and their brokers can be in, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli import partition_report
from tidelog.cli.cluster_facts import Facts, TopicRules, longest
from tidelog.cli.explain_partition import Explanation, explain
from tidelog.client.addresses import Address
from tidelog.client.cluster_admin import ClusterBroker, ClusterDescription, PartitionDescription
from tidelog.client.errors import BrokerUnreachableError, ClientError
from tidelog.client.metadata import TopicPartition
from tidelog.client.replica_states import Absence, BrokerState, ReplicaState, Since, Standing, Told

NOW_MS = 1_700_000_000_000
TP = TopicPartition("orders", 0)
RULES = TopicRules(2, False, 30_000)
ACTIVE = BrokerState("active", Since(NOW_MS - 60_000, True))
REFUSED = BrokerUnreachableError("cannot connect to 127.0.0.1:9093: connection refused")


def away(state: str, seconds: float = 10, *, is_exact: bool = True) -> BrokerState:
    return BrokerState(state, Since(NOW_MS - int(seconds * 1000), is_exact))


def absence(why: str, seconds: float = 10) -> Absence:
    return Absence(why, Since(NOW_MS - int(seconds * 1000), True))


def standing(broker_id: int, end: int | None, *, in_sync: bool = True, **fields: Any) -> Standing:
    ready = {"is_joining": False, "holds_watermark": False, "caught_up_ms_ago": 100, "fetched_ms_ago": 100}
    return Standing(broker_id, end, in_sync, **{**ready, **fields})


def replica(role: str, end: int | None = 120, **fields: Any) -> ReplicaState:
    ready = {
        "problem": "", "leader_epoch": 3, "log_start_offset": 0, "high_watermark": end, "counted_end": end,
        "log_end_offset": end, "below_min": False, "standings": (), "absent": {}, "leaderless": None,
    }  # fmt: skip
    return ReplicaState(role, **{**ready, **fields})


class Scene:
    """Three brokers, 1 leads; a test says what is different."""

    def __init__(self) -> None:
        self.brokers = {1: ACTIVE, 2: ACTIVE, 3: ACTIVE}
        self.replicas = {
            1: replica("leader", standings=tuple(standing(n, 120) for n in (1, 2, 3))),
            2: replica("follower"),
            3: replica("follower"),
        }
        self.silent: dict[int, ClientError | None] = {}
        self.described = PartitionDescription("orders", 0, 1, 3, (1, 2, 3), (1, 2, 3), (), (), ())
        self.absent: dict[int, Absence] = {}
        self.rules = RULES

    def leads(self, **fields: Any) -> None:
        self.replicas[1] = self.replicas[1]._replace(**fields)

    def leave(self, broker: int, state: BrokerState, why: str) -> None:
        """It has left the ISR and does not answer."""
        self.brokers[broker] = state
        self.silent[broker] = REFUSED
        self.out(broker, why)

    def out(self, broker: int, why: str) -> None:
        self.absent[broker] = absence(why)
        self.described = self.described._replace(isr=tuple(n for n in self.described.isr if n != broker))

    def explained(self) -> Explanation:
        told: dict[int, Told | ClientError | None] = {
            number: Told(number, NOW_MS, 1, 100, self.brokers, {TP: state._replace(absent=self.absent)})
            for number, state in self.replicas.items()
        }
        description = ClusterDescription(
            "id",
            tuple(
                ClusterBroker(n, Address("h", 9092), None, s.state != "active")
                for n, s in self.brokers.items()
            ),
        )
        facts = Facts(description, REFUSED, [self.described], {**told, **self.silent}, {})
        return explain(facts, TP, self.described, self.rules)

    def kinds(self) -> list[str]:
        return [finding.kind for finding in self.explained().findings]

    def first(self) -> str:
        finding = self.explained().findings[0]
        return f"{finding.what} → {finding.advice}"


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_nothing_is_found_where_all_is_well(scene: Scene) -> None:
    assert scene.kinds() == []
    assert partition_report.watermark_line(scene.explained()) == (
        "high watermark 120, the end of the log: everything is committed"
    )


@pytest.mark.parametrize(
    ("state", "kind", "advice"),
    [
        ("fenced", "broker away", "start broker 2 again"),
        ("shut down", "shut down", "start broker 2 again"),
        ("shutting down", "shut down", "start broker 2 again"),
        ("starting", "starting", "It joins by itself"),
    ],
)
def test_brokers_that_are_away(scene: Scene, state: str, kind: str, advice: str) -> None:
    scene.leave(2, away(state), "its broker was fenced")
    assert scene.kinds() == [kind]
    assert "since 2023-11-14 22:13:10Z: its broker was fenced" in scene.first()
    assert advice in scene.first()


def test_a_broker_that_is_fenced_and_answers(scene: Scene) -> None:
    scene.leave(2, away("fenced"), "its broker was fenced")
    del scene.silent[2]
    assert scene.kinds() == ["cut off from the controller"]


def test_a_disk_that_failed(scene: Scene) -> None:
    scene.out(2, "its log directory failed")
    scene.replicas[2] = replica("offline", None, problem="log directory /d is offline: EIO")
    assert scene.kinds() == ["disk failed"]
    assert "log directory /d is offline: EIO" in scene.first() and "replace the disk" in scene.first()


def test_a_broker_that_nobody_knows_any_more(scene: Scene) -> None:
    scene.out(3, "its broker was unregistered")
    del scene.brokers[3], scene.replicas[3]
    assert scene.kinds() == ["unregistered"]


def test_a_follower_that_fetches_and_does_not_arrive(scene: Scene) -> None:
    scene.out(3, "it did not catch up in time")
    scene.leads(standings=(standing(1, 120), standing(2, 120), standing(3, 70, in_sync=False)))
    assert scene.kinds() == ["catching up"]
    assert "It has 70 of 120, 50 records behind, and fetches" in scene.first()


@pytest.mark.parametrize(
    ("end", "fetched_ms_ago", "said"),
    [(70, 9_000, "last fetched 9 s ago"), (None, None, "has fetched nothing from broker 1")],
)
def test_a_follower_that_does_not_fetch(
    scene: Scene, end: int | None, fetched_ms_ago: int | None, said: str
) -> None:
    scene.out(3, "it did not catch up in time")
    late = standing(3, end, in_sync=False, fetched_ms_ago=fetched_ms_ago, caught_up_ms_ago=None)
    scene.leads(standings=(standing(1, 120), standing(2, 120), late))
    assert scene.kinds() == ["does not fetch"]
    assert said in scene.first()


def test_a_slow_follower_in_sync_is_named_and_no_trouble(scene: Scene) -> None:
    """The seeds' picture: ends 120, 120 and 118."""
    holding = standing(3, 118, holds_watermark=True)
    scene.leads(high_watermark=118, standings=(standing(1, 120), standing(2, 120), holding))
    assert scene.kinds() == []
    assert partition_report.watermark_line(scene.explained()) == (
        "high watermark 118 of 120, 2 records not committed: held by broker 3, which has 118"
    )


def test_a_silent_follower_in_sync_holds_the_watermark_for_so_long(scene: Scene) -> None:
    holding = standing(3, 118, holds_watermark=True, fetched_ms_ago=20_000, caught_up_ms_ago=21_000)
    scene.leads(high_watermark=118, standings=(standing(1, 120), standing(2, 120), holding))
    assert scene.kinds() == ["watermark held"]
    assert "leaves the ISR in 9 s (replica.lag.time.max.ms is 30 s)" in scene.first()


def test_the_leaders_own_disk_may_hold_the_watermark(scene: Scene) -> None:
    holding = standing(1, 110, holds_watermark=True)
    scene.leads(high_watermark=110, standings=(holding, standing(2, 120), standing(3, 120)))
    assert "held by broker 1, the leader, whose disk has 110 so far" in partition_report.watermark_line(
        scene.explained()
    )


def test_one_that_is_about_to_join_may_hold_the_watermark(scene: Scene) -> None:
    scene.out(3, "it did not catch up in time")
    joining = standing(3, 118, in_sync=False, is_joining=True, holds_watermark=True)
    scene.leads(high_watermark=118, standings=(standing(1, 120), standing(2, 120), joining))
    assert "held by broker 3, which is about to join, which has 118" in partition_report.watermark_line(
        scene.explained()
    )


def test_too_few_in_sync(scene: Scene) -> None:
    scene.leave(2, away("fenced"), "its broker was fenced")
    scene.leave(3, away("fenced"), "its broker was fenced")
    scene.leads(below_min=True, high_watermark=100, standings=(standing(1, 120),))
    assert scene.kinds() == ["below min.insync.replicas", "broker away", "broker away"]
    assert "1 of 3 replicas are in sync, min.insync.replicas asks for 2" in scene.first()
    assert "stands at 100: 20 records behind it" in scene.first()


def test_a_leader_that_does_not_answer(scene: Scene) -> None:
    scene.silent[1] = REFUSED
    assert scene.kinds() == ["leader does not answer"]
    assert partition_report.watermark_line(scene.explained()) == "high watermark: nobody who leads tells"


def test_a_leader_that_does_not_know_it_yet(scene: Scene) -> None:
    scene.replicas[1] = replica("follower")
    assert scene.kinds() == ["leader changing"]


def test_another_one_than_the_preferred_leads(scene: Scene) -> None:
    scene.described = scene.described._replace(replicas=(2, 1, 3))
    assert scene.kinds() == ["not the preferred leader"]
    assert "tidelog partition elect orders-0" in scene.first()


class TestNobodyLeads:
    @pytest.fixture(autouse=True)
    def nobody(self, scene: Scene) -> None:
        for broker in (1, 2, 3):
            scene.leave(broker, away("fenced"), "its broker was fenced")
        scene.replicas[3] = replica("follower", leaderless=Since(NOW_MS - 5_000, True))
        del scene.silent[3]
        scene.brokers[3] = ACTIVE
        scene.described = scene.described._replace(leader=-1)

    def test_and_somebody_has_everything(self, scene: Scene) -> None:
        scene.described = scene.described._replace(elr=(2,))
        assert scene.kinds()[0] == "no leader"
        assert "since 2023-11-14 22:13:15Z" in scene.first()
        assert "Who has everything that was committed: 2 (fenced since" in scene.first()
        assert "start broker 2" in scene.first() and "--unclean orders-0" in scene.first()

    def test_and_only_who_was_in_sync_is_known(self, scene: Scene) -> None:
        scene.described = scene.described._replace(last_known_elr=(1, 2))
        assert "last known in sync: 1, 2; away: 1 (fenced" in scene.first()
        assert "the one with the longest log leads" in scene.first()

    def test_and_an_unclean_election_is_allowed(self, scene: Scene) -> None:
        scene.rules = RULES._replace(unclean_allowed=True)
        assert "any replica that comes back may lead" in scene.first()


def test_whose_memory_counts() -> None:
    """The earliest that somebody saw; what was so before is no better than that."""
    assert longest([Since(50, False), Since(40, True), Since(45, True)]) == Since(40, True)
    assert longest([Since(50, False), Since(30, False)]) == Since(30, False)


def test_who_is_cut_off_is_not_believed(scene: Scene) -> None:
    """Its metadata is old: to it, it is still active."""
    scene.leave(2, away("fenced"), "its broker was fenced")
    del scene.silent[2]
    found = scene.explained()
    assert [told.broker_id for told in found.facts.answers] == [1, 3]
    assert found.facts.state_of(2) == away("fenced")


def test_one_that_is_in_sync_has_no_reason_to_be_out(scene: Scene) -> None:
    scene.absent[2] = absence("it did not catch up in time")
    assert [row[7] for row in partition_report.rows(scene.explained())] == [None, None, None]
