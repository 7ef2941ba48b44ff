"""`tidelog cluster status`, `quorum describe`, `partition elect` and `explain partition` on three brokers: the truth when all is well, and for everything that can happen to one of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.conftest import Result
from tidelog.cli import cluster_facts
from tidelog.client.blocking import Producer
from tidelog.testing import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TOPIC = "orders"
SECONDS_MAX = 60.0
EVERYBODY = {0, 1, 2}

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands wait a moment for brokers that stand still, not seconds: here whoever answers at all does so at once."""
    monkeypatch.setattr(cluster_facts, "PATIENCE", {"connect_timeout_ms": 1_500, "request_timeout_ms": 5_000})
    monkeypatch.setattr(cluster_facts, "ANSWER_MS", 1_500)


def wait_until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Three:
    """A cluster, and commands that ask it."""

    def __init__(self, cluster: Cluster, run: Run) -> None:
        self.cluster = cluster
        self._run = run

    def say(self, *arguments: object) -> Result:
        return self._run(*arguments, "-b", self.cluster.bootstrap_servers)

    def told(self, *arguments: object) -> Any:
        result = self.say(*arguments, "--json")
        assert result.out, result.err
        return json.loads(result.out)

    def explained(self) -> dict[str, Any]:
        document: dict[str, Any] = self.told("explain", "partition", f"{TOPIC}-0")
        return document

    def findings(self) -> dict[str, str]:
        return {finding["kind"]: finding["what"] for finding in self.explained()["findings"]}

    def replica(self, broker: int) -> dict[str, Any]:
        return next(each for each in self.explained()["replicas"] if each["broker"] == broker)

    def broker(self, broker: int) -> dict[str, Any]:
        return next(each for each in self.told("cluster", "status")["brokers"] if each["broker"] == broker)

    @property
    def leader(self) -> int:
        return self.cluster.leader_of(TOPIC, 0)

    @property
    def bystander(self) -> int:
        """A follower that is not the controller: what happens to it moves nobody else."""
        return next(node for node in range(3) if node not in (self.leader, self.cluster.controller))

    def send(self, count: int = 1, **options: Any) -> None:
        with Producer(self.cluster.bootstrap_servers, **options) as producer:
            for _ in range(count):
                producer.send(TOPIC, b"record", partition=0)
            producer.flush()

    def has_left(self, broker: int) -> bool:
        return broker not in self.cluster.in_sync(TOPIC, 0)


@contextmanager
def three(run: Run, config: Mapping[str, Any] | None = None) -> Iterator[Three]:
    with Cluster(brokers=3, config=config or {}) as cluster:
        cluster.create_topic(TOPIC, 1)
        wait_until(lambda: cluster.in_sync(TOPIC, 0) == EVERYBODY)
        yield Three(cluster, run)


def test_all_is_well(tidelog: Run) -> None:
    with three(tidelog) as world:
        world.send(5)
        found = world.told("cluster", "status", "--all")
        assert found["controller"] == world.cluster.controller
        assert [broker["state"] for broker in found["brokers"]] == ["active"] * 3
        assert [broker["answers"] for broker in found["brokers"]] == [True] * 3
        assert sorted(broker["controller"] for broker in found["brokers"]) == ["active", "voter", "voter"]
        assert sum(broker["leads"] for broker in found["brokers"]) == 1
        assert sum(broker["follows"] for broker in found["brokers"]) == 2
        assert all(broker["log_bytes"] > 0 for broker in found["brokers"])
        assert all(0 < broker["disk_used_bytes"] <= broker["disk_total_bytes"] for broker in found["brokers"])
        (partition,) = found["partitions"]
        assert (partition["leader"], partition["log_end_offset"]) == (world.leader, 5)
        assert partition["trouble"] is None
        assert set(partition["isr"]) == EVERYBODY

        text = world.say("cluster", "status").out
        assert "every partition has a leader and all of its replicas in sync" in text
        assert TOPIC not in text, "only what is not well is listed"

        explained = world.explained()
        assert explained["findings"] == []
        assert explained["min_insync_replicas"] == 2
        assert {replica["in_sync"] for replica in explained["replicas"]} == {True}
        wait_until(lambda: {r["log_end_offset"] for r in world.explained()["replicas"]} == {5})
        wait_until(lambda: world.explained()["high_watermark"] == 5)
        text = world.say("explain", "partition", f"{TOPIC}-0").out
        assert "high watermark 5, the end of the log: everything is committed" in text
        assert "nothing here looks like a problem" in text

        quorum = world.told("quorum", "describe")
        assert quorum["leader"] == world.cluster.controller
        assert {voter["node"] for voter in quorum["voters"]} == EVERYBODY
        assert all(voter["address"].startswith("127.0.0.1:") for voter in quorum["voters"])
        assert quorum["observers"] == []
        assert (
            world.say("quorum", "describe")
            .out.splitlines()[0]
            .startswith(f"leader {quorum['leader']}  epoch")
        )

        elected = world.say("partition", "elect", "--all")
        assert (elected.code, elected.out) == (0, "no partition needs such an election\n")
        (outcome,) = world.told("partition", "elect", f"{TOPIC}-0")
        assert outcome["result"] == "not needed"


def test_a_follower_is_killed_and_comes_back(tidelog: Run) -> None:
    with three(tidelog) as world:
        gone = world.bystander
        began_ms = time.time_ns() // 1_000_000
        world.cluster.kill(gone)
        wait_until(lambda: world.has_left(gone))
        broker = world.broker(gone)
        assert (broker["state"], broker["fenced"], broker["answers"]) == ("fenced", True, False)
        assert broker["since_is_exact"] and broker["since_ms"] >= began_ms
        assert broker["offline"] == 1

        replica = world.replica(gone)
        assert replica["out_because"] == "its broker was fenced"
        assert replica["out_since"]["is_exact"] and replica["out_since"]["at_ms"] >= began_ms
        (finding,) = world.findings().items()
        assert finding[0] == "broker away" and f"broker {gone} is not in sync, since" in finding[1]

        status = world.say("cluster", "status")
        assert "3 brokers (1 fenced)" in status.out and "1 under-replicated" in status.out
        assert f"{TOPIC}-0" in status.out
        assert f"broker {gone} could not be asked: " in status.err

        wait_until(lambda: "not " + str(gone) in world.say("quorum", "describe").err)
        world.cluster.restart(gone)
        wait_until(lambda: not world.has_left(gone))
        wait_until(lambda: world.explained()["findings"] == [])
        assert world.broker(gone)["state"] == "active"


def test_a_leader_is_stopped_and_leads_again_when_it_is_asked_to(tidelog: Run) -> None:
    with three(tidelog, {"auto.leader.rebalance.enable": "false"}) as world:
        preferred = world.leader
        runner = world.cluster._runners.pop(preferred)
        runner.begin_stop(clean=True)
        runner.join()
        wait_until(lambda: world.leader not in (preferred, -1))
        replica = world.replica(preferred)
        assert replica["out_because"] == "its broker shut down"
        assert world.broker(preferred)["state"] in ("shut down", "fenced")
        assert set(world.findings()) == {"shut down"}

        failed = world.say("partition", "elect", f"{TOPIC}-0")
        assert failed.code == 1
        assert "PREFERRED_LEADER_NOT_AVAILABLE" in failed.out and f"broker {preferred}" in failed.out
        assert world.told("partition", "elect", "--all")[0]["result"] == "failed"
        unneeded = world.told("partition", "elect", TOPIC, "--unclean", "--yes")
        assert [each["result"] for each in unneeded] == ["not needed"]

        world.cluster.restart(preferred)
        wait_until(lambda: not world.has_left(preferred))
        assert set(world.findings()) == {"not the preferred leader"}
        (outcome,) = world.told("partition", "elect", "--all")
        assert (outcome["result"], outcome["leader"]) == ("elected", preferred)
        assert world.leader == preferred


def test_a_follower_stands_still_and_holds_the_watermark_until_it_leaves(tidelog: Run) -> None:
    """It is fenced only after its session: until then the leader waits for it, and for its lag time at most."""
    config = {"replica.lag.time.max.ms": 5000, "broker.session.timeout.ms": 60_000}
    with three(tidelog, config) as world:
        world.send(1)
        still = world.bystander
        world.cluster.pause(still)
        world.send(3, acks=1, enable_idempotence=False)
        wait_until(lambda: "watermark held" in world.findings() or world.has_left(still))
        found = world.explained()
        if still in found["isr"]:
            finding = next(each for each in found["findings"] if each["kind"] == "watermark held")
            assert f"waits for broker {still}, which has 1 of 4" in finding["what"]
            assert "leaves the ISR in" in finding["what"]
            held = {each["broker"] for each in found["replicas"] if each["holds_watermark"]}
            assert held == {still} and found["high_watermark"] == 1
        wait_until(lambda: world.has_left(still))
        wait_until(lambda: world.explained()["high_watermark"] == 4)
        replica = world.replica(still)
        assert replica["out_because"] == "it did not catch up in time"
        assert replica["answers"] is False and replica["behind"] == 3
        found = world.explained()
        # Sooner or later the controller misses it, too.
        state = next(each["broker_state"] for each in found["replicas"] if each["broker"] == still)
        kinds = {finding["kind"] for finding in found["findings"]}
        assert kinds == {{"active": "does not fetch", "fenced": "broker away"}[state]}
        status = world.broker(still)
        assert status["state"] in ("active", "fenced") and status["answers"] is False
        world.cluster.heal()
        wait_until(lambda: world.explained()["findings"] == [])


def test_a_follower_that_does_not_reach_its_leader(tidelog: Run) -> None:
    """It reaches the controller, which is another broker, and so nobody fences it."""
    with three(tidelog, {"replica.lag.time.max.ms": 1000, "replica.fetch.wait.max.ms": 200}) as world:
        cluster = world.cluster
        cluster.create_topic("apart", 3)
        index = next(n for n in range(3) if cluster.leader_of("apart", n) != cluster.controller)
        leader = cluster.leader_of("apart", index)
        (cut,) = EVERYBODY - {leader, cluster.controller}

        def explained() -> dict[str, Any]:
            document: dict[str, Any] = world.told("explain", "partition", f"apart-{index}")
            return document

        def send(count: int) -> None:
            with Producer(cluster.bootstrap_servers) as producer:
                for _ in range(count):
                    producer.send("apart", b"record", partition=index)
                producer.flush()

        send(1)
        cluster.partition(leader, cut)
        send(2)
        wait_until(lambda: cut not in cluster.in_sync("apart", index))
        wait_until(lambda: "does not fetch" in {each["kind"] for each in explained()["findings"]})
        replica = next(each for each in explained()["replicas"] if each["broker"] == cut)
        assert (replica["broker_state"], replica["answers"]) == ("active", True)
        assert replica["out_because"] == "it did not catch up in time"
        assert (replica["log_end_offset"], replica["behind"]) == (1, 2)
        cluster.heal()
        wait_until(lambda: explained()["findings"] == [])


def test_a_broker_that_does_not_reach_the_controllers(tidelog: Run) -> None:
    """It is fenced and answers clients, with what it knew before. It is asked first, and does not mislead anybody."""
    config = {"broker.session.timeout.ms": 2000, "broker.heartbeat.interval.ms": 500}
    with three(tidelog, config) as world:
        cut = world.bystander
        for other in EVERYBODY - {cut}:
            world.cluster.partition(cut, other)
        wait_until(lambda: world.has_left(cut))
        servers = world.cluster.bootstrap_servers.split(",")
        servers.insert(0, servers.pop(cut))
        found = tidelog("explain", "partition", f"{TOPIC}-0", "--json", "-b", ",".join(servers))
        document = json.loads(found.out)
        assert cut not in document["isr"]
        assert [finding["kind"] for finding in document["findings"]] == ["cut off from the controller"]
        status = json.loads(tidelog("cluster", "status", "--json", "-b", ",".join(servers)).out)
        broker = status["brokers"][cut]
        assert (broker["state"], broker["fenced"], broker["answers"]) == ("fenced", True, True)
        assert status["controller"] == world.cluster.controller
        quorum = json.loads(tidelog("quorum", "describe", "--json", "-b", ",".join(servers)).out)
        assert quorum["leader"] == world.cluster.controller
        world.cluster.heal()
        wait_until(lambda: world.explained()["findings"] == [])


def test_too_few_in_sync(tidelog: Run) -> None:
    """What acks=1 writes is there and invisible, and the explanation says how much and why."""
    with three(tidelog, {"min.insync.replicas": 3}) as world:
        world.send(2)
        gone = world.bystander
        world.cluster.kill(gone)
        wait_until(lambda: world.has_left(gone))
        world.send(4, acks=1, enable_idempotence=False)
        wait_until(lambda: "below min.insync.replicas" in world.findings())
        found = world.explained()
        assert (found["high_watermark"], found["log_end_offset"], found["below_min"]) == (2, 6, True)
        what = world.findings()["below min.insync.replicas"]
        assert "2 of 3 replicas are in sync, min.insync.replicas asks for 3" in what
        assert "the high watermark stands at 2: 4 records behind it" in what
        assert found["eligible_leader_replicas"] == [gone]
        text = world.say("explain", "partition", f"{TOPIC}-0").out
        assert "4 records not committed: fewer replicas are in sync than min.insync.replicas asks for" in text
        assert world.told("cluster", "status")["partitions"][0]["trouble"] == "below min.insync.replicas"
        world.cluster.restart(gone)
        wait_until(lambda: world.explained()["high_watermark"] == 6)


def test_nobody_leads(tidelog: Run) -> None:
    """The only replica is gone: who could lead, since when; and that nobody can be elected instead."""
    with three(tidelog) as world:
        cluster = world.cluster
        assert world.say("topic", "create", "single", "-p", 3, "-r", 1).code == 0
        index = next(n for n in range(3) if cluster.leader_of("single", n) != cluster.controller)
        only = cluster.leader_of("single", index)
        cluster.kill(only)
        wait_until(lambda: cluster.leader_of("single", index) == -1)
        found = world.told("explain", "partition", f"single-{index}")
        assert found["leader"] == -1 and found["leaderless_since"]["is_exact"]
        finding = found["findings"][0]
        assert finding["kind"] == "no leader"
        assert f"{only} (fenced since" in finding["what"]
        assert f"start broker {only}" in finding["advice"]
        assert "no leader" in world.say("cluster", "status").out
        (failed,) = world.told("partition", "elect", f"single-{index}", "--unclean", "--yes")
        assert failed["result"] == "failed" and "ELIGIBLE_LEADERS_NOT_AVAILABLE" in failed["why"]
        cluster.restart(only)
        wait_until(lambda: cluster.leader_of("single", index) == only)


def test_an_unclean_election_by_hand(tidelog: Run) -> None:
    """Who has everything is gone, who is there has less: it leads only when somebody says so, and the loss is told."""
    with three(tidelog, {"replica.lag.time.max.ms": 1000}) as world:
        cluster = world.cluster
        assert world.say("topic", "create", "pair", "-p", 3, "-r", 2, "-c", "min.insync.replicas=1").code == 0
        index = next(n for n in range(3) if cluster.controller not in cluster.in_sync("pair", n))
        full = cluster.leader_of("pair", index)
        (lacking,) = cluster.in_sync("pair", index) - {full}
        cluster.pause(lacking)
        wait_until(lambda: lacking not in cluster.in_sync("pair", index))
        with Producer(cluster.bootstrap_servers) as producer:
            producer.send("pair", b"only one has it", partition=index)
            producer.flush()
        cluster.kill(full)
        cluster.heal()
        wait_until(lambda: cluster.leader_of("pair", index) == -1)
        found = world.told("explain", "partition", f"pair-{index}")
        assert found["eligible_leader_replicas"] == [full]
        finding = found["findings"][0]
        assert (
            finding["kind"] == "no leader"
            and f"Who has everything that was committed: {full} (" in finding["what"]
        )
        assert f"tidelog partition elect --unclean pair-{index}" in finding["advice"]

        wait_until(lambda: world.broker(lacking)["state"] == "active")
        result = world.say("partition", "elect", f"pair-{index}", "--unclean", "--yes")
        assert result.code == 0 and "elected" in result.out and "elected uncleanly" in result.err
        wait_until(lambda: world.told("explain", "partition", f"pair-{index}")["leader"] == lacking)
        assert world.told("explain", "partition", f"pair-{index}")["log_end_offset"] == 0


def test_the_live_view(tidelog: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe: one document after the other, until Ctrl-C."""
    looks = 0

    async def pause(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks % 2 == 0:
            raise KeyboardInterrupt

    with three(tidelog) as world:
        world.send(2)
        monkeypatch.setattr("tidelog.cli.cluster.pause", pause)
        result = world.say("cluster", "status", "--watch", "--json")
        assert result.code == 130
        documents = [json.loads(line) for line in result.out.splitlines()]
        assert [document["partitions"][0]["log_end_offset"] for document in documents] == [2, 2]
        result = world.say("cluster", "status", "--watch")
        assert result.out.count("HIGH WATERMARK") == 2 and f"{TOPIC}-0" in result.out

        async def kill_all(_: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 5:
                for node in range(3):
                    await asyncio.to_thread(world.cluster.kill, node)
            if looks == 6:
                raise KeyboardInterrupt

        servers = world.cluster.bootstrap_servers
        monkeypatch.setattr("tidelog.cli.cluster.pause", kill_all)
        result = tidelog("cluster", "status", "--watch", "--json", "-b", servers)
        well, gone = (json.loads(line) for line in result.out.splitlines())
        assert well["brokers"] and "error" in gone, "it goes on, and says that nobody answers"


def test_the_majority_of_the_controllers_is_away(tidelog: Run) -> None:
    """What has a leader goes on; who could elect another one is missing, and that is said, soon."""
    with three(tidelog) as world:
        left = world.leader
        for node in sorted(EVERYBODY - {left}, key=lambda node: node == world.cluster.controller):
            world.cluster.kill(node)
        began_at = time.monotonic()
        # Who was the active controller itself finds out when nobody has fetched from it for a while.
        while "controller: nobody tells who is active" not in (status := world.say("cluster", "status")).out:
            assert status.code == 0 and time.monotonic() - began_at < 40
        assert world.told("cluster", "status")["controller"] is None
        failed = world.say("quorum", "describe")
        assert failed.code == 1 and "the majority of its voters is away" in failed.err
        assert {finding["kind"] for finding in world.explained()["findings"]} <= {
            "broker away",
            "below min.insync.replicas",
        }


def test_what_is_named_wrong(tidelog: Run) -> None:
    with three(tidelog) as world:
        assert world.say("explain", "partition", "orders").code == 2
        missing = world.say("explain", "partition", "nothing-0")
        assert missing.code == 1 and "topic nothing" in missing.err
        beyond = world.say("explain", "partition", f"{TOPIC}-7")
        assert beyond.code == 1 and "has partitions 0 to 0" in beyond.err
        assert world.say("partition", "elect").code == 2
        assert world.say("partition", "elect", "--all", TOPIC).code == 2
        assert world.say("partition", "elect", "nothing-0").code == 1
        unknown = world.say("partition", "elect", f"{TOPIC}-7")
        assert unknown.code == 1 and "UNKNOWN_TOPIC_OR_PARTITION" in unknown.out
        assert world.say("cluster", "status", "--topic", "nothing").code == 1
        refused = world.say("partition", "elect", TOPIC, "--unclean", "--json")
        assert refused.code == 1 and "--yes" in refused.err
