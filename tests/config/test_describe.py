"""DescribeConfigs answers what a Kafka 4.3.1 broker with the same settings answered."""

from __future__ import annotations

from tidelog.config import BrokerConfig, ConfigSource, ConfigType
from tidelog.config.describe import (
    ConfigEntry,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)

STATIC = {
    "node.id": "1",
    "log.retention.hours": "5",
    "log.segment.bytes": "2097152",
    "log.roll.hours": "3",
    "log.flush.scheduler.interval.ms": "7777",
    "ssl.keystore.password": "hunter2",
    "zookeeper.connect": "localhost:2181",
    "controller.performance.sample.period.ms": "60000",
}
UNTOUCHED = BrokerConfig.load(STATIC)
CHANGED = UNTOUCHED.with_dynamic(
    node={
        "log.retention.ms": "3600000",
        "num.io.threads": "9",
        "leader.replication.throttled.rate": "100",
        "listener.name.plaintext.max.connections": "100",
    },
    default={"log.retention.ms": "1800000", "log.segment.bytes": "4194304", "min.insync.replicas": "1"},
)


def show(entries: list[ConfigEntry]) -> dict[str, str]:
    """Each entry on one line: value | source | synonyms, sources by their number on the wire."""
    return {
        entry.name: f"{entry.value} {entry.source.value} "
        + " ".join(f"{synonym.name}={synonym.value}@{synonym.source.value}" for synonym in entry.synonyms)
        for entry in entries
    }


def test_an_untouched_topic() -> None:
    entries = describe_topic({}, UNTOUCHED)
    lines = show(entries)
    assert len(lines) == 33 + 1, "Kafka's 33 and durability"
    assert lines["cleanup.policy"] == "delete 5 log.cleanup.policy=delete@5"
    assert lines["segment.bytes"] == "2097152 4 log.segment.bytes=2097152@4 log.segment.bytes=1073741824@5"
    assert lines["retention.ms"] == "18000000 5 "
    assert lines["segment.ms"] == "10800000 5 "
    assert lines["flush.ms"] == "7777 5 "
    assert lines["min.cleanable.dirty.ratio"] == "0.5 5 log.cleaner.min.cleanable.ratio=0.5@5"
    assert lines["leader.replication.throttled.replicas"] == " 5 "
    assert lines["remote.storage.enable"] == "false 5 "
    assert all(not entry.read_only and not entry.sensitive for entry in entries)
    assert next(e.type for e in entries if e.name == "flush.messages") is ConfigType.LONG


def test_a_topic_with_overrides_under_a_changed_broker() -> None:
    lines = show(describe_topic({"retention.ms": "60000", "cleanup.policy": "compact,delete"}, CHANGED))
    assert lines["retention.ms"] == (
        "60000 1 retention.ms=60000@1 log.retention.ms=3600000@2 log.retention.ms=1800000@3 "
        "log.retention.hours=5@4 log.retention.hours=168@5"
    )
    assert (
        lines["cleanup.policy"]
        == "compact,delete 1 cleanup.policy=compact,delete@1 log.cleanup.policy=delete@5"
    )
    assert lines["segment.bytes"] == (
        "4194304 3 log.segment.bytes=4194304@3 log.segment.bytes=2097152@4 log.segment.bytes=1073741824@5"
    )
    assert lines["min.insync.replicas"] == "1 3 min.insync.replicas=1@3 min.insync.replicas=1@5"


def test_an_internal_setting_is_listed_only_when_set() -> None:
    assert "internal.segment.bytes" not in show(describe_topic({}, UNTOUCHED))
    lines = show(describe_topic({"internal.segment.bytes": "100"}, UNTOUCHED))
    assert lines["internal.segment.bytes"] == "100 1 internal.segment.bytes=100@1"


def test_a_broker_with_static_settings() -> None:
    entries = {entry.name: entry for entry in describe_broker(UNTOUCHED)}
    lines = show(list(entries.values()))
    assert lines["log.retention.ms"] == "None 5 "
    assert lines["log.retention.hours"] == "5 4 log.retention.hours=5@4 log.retention.hours=168@5"
    assert lines["log.roll.ms"] == "None 5 "
    assert lines["log.flush.interval.ms"] == "None 5 "
    assert lines["broker.id"] == "1 4 broker.id=1@4 broker.id=-1@5"
    assert lines["ssl.keystore.password"] == "None 4 ssl.keystore.password=None@4"
    assert lines["zookeeper.connect"] == "None 4 zookeeper.connect=None@4"
    assert entries["zookeeper.connect"].type is ConfigType.UNKNOWN and entries["zookeeper.connect"].sensitive
    assert "controller.performance.sample.period.ms" in lines, "internal, but set"
    assert "controller.performance.always.log.threshold.ms" not in lines
    assert entries["log.retention.hours"].read_only and not entries["log.retention.ms"].read_only
    assert entries["num.io.threads"].is_default and not entries["log.roll.hours"].is_default


def test_a_broker_with_dynamic_settings() -> None:
    entries = {entry.name: entry for entry in describe_broker(CHANGED)}
    lines = show(list(entries.values()))
    assert lines["log.retention.ms"] == (
        "3600000 2 log.retention.ms=3600000@2 log.retention.ms=1800000@3 log.retention.hours=5@4 log.retention.hours=168@5"
    )
    assert lines["num.io.threads"] == "9 2 num.io.threads=9@2 num.io.threads=8@5"
    assert lines["leader.replication.throttled.rate"] == "100 2 leader.replication.throttled.rate=100@2"
    assert lines["listener.name.plaintext.max.connections"] == (
        "100 2 listener.name.plaintext.max.connections=100@2 max.connections=2147483647@5"
    )
    assert entries["listener.name.plaintext.max.connections"].read_only


def test_the_clusters_defaults_list_only_what_is_set() -> None:
    assert show(describe_broker_defaults(CHANGED)) == {
        "log.retention.ms": "1800000 3 log.retention.ms=1800000@3",
        "log.segment.bytes": "4194304 3 log.segment.bytes=4194304@3",
        "min.insync.replicas": "1 3 min.insync.replicas=1@3",
    }
    assert describe_broker_defaults(UNTOUCHED) == []


def test_advertised_listeners_are_always_told() -> None:
    """Some tools look for them, whether or not anybody set them."""
    (entry,) = describe_broker(BrokerConfig.load(), {"advertised.listeners"})
    assert (entry.value, entry.source) == ("PLAINTEXT://127.0.0.1:9092", ConfigSource.DEFAULT_CONFIG)


def test_advertised_listeners_are_as_settled_as_the_listeners_they_are_made_of() -> None:
    """A test of kafka-python's asks whether they are static, as they are with the properties that Kafka comes with."""
    broker = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9192"})
    (entry,) = describe_broker(broker, {"advertised.listeners"})
    assert (entry.value, entry.source) == ("PLAINTEXT://127.0.0.1:9192", ConfigSource.STATIC_BROKER_CONFIG)
    assert entry.read_only and not entry.synonyms


def test_only_what_is_asked_for_is_answered() -> None:
    assert [entry.name for entry in describe_topic({}, UNTOUCHED, {"retention.ms", "no.such"})] == [
        "retention.ms"
    ]
    assert [entry.name for entry in describe_broker(UNTOUCHED, {"node.id"})] == ["node.id"]


def test_a_group() -> None:
    lines = show(describe_group({"consumer.session.timeout.ms": "50000"}, UNTOUCHED))
    assert len(lines) == 17
    assert lines["consumer.session.timeout.ms"] == (
        "50000 8 consumer.session.timeout.ms=50000@8 group.consumer.session.timeout.ms=45000@5"
    )
    assert lines["share.auto.offset.reset"] == "latest 5 share.auto.offset.reset=latest@5"


def test_no_entry_ever_holds_a_secret() -> None:
    everything = [*describe_broker(CHANGED), *describe_broker_defaults(CHANGED)]
    assert "hunter2" not in repr(everything)
