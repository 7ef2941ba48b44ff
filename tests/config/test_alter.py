"""Changes of settings: Kafka's answers, and nothing half done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config import BrokerConfig
from tidelog.config.alter import (
    Alteration,
    AlterOp,
    alter_broker,
    alter_group,
    alter_topic,
    create_topic,
    replace_broker,
    replace_topic,
)
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

BROKER = BrokerConfig.load()
SET, DELETE, APPEND, SUBTRACT = AlterOp


def topic(
    name: str, value: str | None, op: int = SET, current: dict[str, str] | None = None
) -> dict[str, str]:
    return alter_topic(current or {}, [Alteration(name, op, value)], BROKER)


def broker(name: str, value: str | None, op: int = SET, *, cluster_wide: bool = False) -> dict[str, str]:
    return alter_broker({}, [Alteration(name, op, value)], BROKER, cluster_wide=cluster_wide)


@pytest.mark.parametrize(
    ("name", "value", "op", "code", "words"),
    [
        ("retentoin.ms", "1", SET, ErrorCode.INVALID_CONFIG, ["retentoin.ms", "retention.ms?"]),
        ("log.retention.ms", "1", SET, ErrorCode.INVALID_CONFIG, ["broker setting", "called retention.ms"]),
        ("num.partitions", "1", SET, ErrorCode.INVALID_CONFIG, ["num.partitions", "broker setting"]),
        ("retention.ms", "abc", SET, ErrorCode.INVALID_CONFIG, ["retention.ms", "'abc'", "at least -1"]),
        ("retention.ms", "-7", SET, ErrorCode.INVALID_CONFIG, ["retention.ms", "'-7'", "at least -1"]),
        ("retention.ms", "", SET, ErrorCode.INVALID_CONFIG, ["retention.ms", "''"]),
        ("retention.ms", None, SET, ErrorCode.INVALID_REQUEST, ["retention.ms", "null"]),
        ("retention.ms", "1", APPEND, ErrorCode.INVALID_CONFIG, ["APPEND", "retention.ms", "LONG"]),
        ("compression.type", None, APPEND, ErrorCode.INVALID_REQUEST, ["compression.type", "null"]),
        ("cleanup.policy", "shrink", APPEND, ErrorCode.INVALID_CONFIG, ["cleanup.policy", "compact, delete"]),
        ("remote.storage.enable", "true", SET, ErrorCode.INVALID_CONFIG, ["remote.storage.enable", "tiered"]),
        ("segment.bytes", "6", SET, ErrorCode.INVALID_CONFIG, ["segment.bytes", "'6'", "1048576"]),
        ("retention.ms", "1", 9, ErrorCode.INVALID_REQUEST, ["9", "retention.ms"]),
    ],
)
def test_a_topic_refuses_as_kafka_does(
    name: str, value: str | None, op: int, code: ErrorCode, words: list[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        topic(name, value, op)
    assert caught.value.code is code
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(
    ("current", "value", "op", "after"),
    [
        ({}, "compact", APPEND, "delete,compact"),
        ({"cleanup.policy": "delete,compact"}, "compact", APPEND, "delete,compact"),
        ({"cleanup.policy": "delete,compact"}, "delete", SUBTRACT, "compact"),
        ({"cleanup.policy": "compact"}, "compact", SUBTRACT, ""),
        ({}, "nothing", SUBTRACT, "delete"),
        ({}, "compact, delete", SET, "compact,delete"),
        ({}, "", SET, ""),
    ],
)
def test_lists_grow_and_shrink_as_in_kafka(
    current: dict[str, str], value: str, op: AlterOp, after: str
) -> None:
    assert topic("cleanup.policy", value, op, current) == {"cleanup.policy": after}


def test_deleting_returns_to_the_default_whatever_the_name() -> None:
    assert topic("retention.ms", None, DELETE, {"retention.ms": "5"}) == {}
    assert topic("no.such", None, DELETE, {"retention.ms": "5"}) == {"retention.ms": "5"}
    assert broker("log.dirs", None, DELETE) == {}


def test_values_are_stored_in_one_form() -> None:
    assert topic("retention.ms", " +77 ") == {"retention.ms": "77"}
    assert topic("preallocate", "TRUE") == {"preallocate": "true"}


def test_a_name_twice_is_refused() -> None:
    changes = [Alteration("retention.ms", SET, "5"), Alteration("retention.ms", SET, "6")]
    with pytest.raises(RequestError, match="more than once") as caught:
        alter_topic({}, changes, BROKER)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_on_an_error_nothing_has_changed() -> None:
    current = {"retention.ms": "1"}
    with pytest.raises(RequestError):
        alter_topic(
            current, [Alteration("retention.ms", SET, "5"), Alteration("segment.bytes", SET, "6")], BROKER
        )
    assert current == {"retention.ms": "1"}


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        RequestError, match=r"min\.compaction\.lag\.ms \(5\).*max\.compaction\.lag\.ms \(1\)"
    ) as caught:
        create_topic([("max.compaction.lag.ms", "1"), ("min.compaction.lag.ms", "5")], BROKER)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_a_new_topic() -> None:
    assert create_topic([("retention.ms", "60000"), ("internal.segment.bytes", "100")], BROKER) == {
        "retention.ms": "60000",
        "internal.segment.bytes": "100",
    }
    with pytest.raises(RequestError, match="null") as caught:
        create_topic([("retention.ms", None)], BROKER)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_alter_configs_replaces_everything() -> None:
    assert replace_topic([("segment.ms", "5")], BROKER) == {"segment.ms": "5"}
    assert replace_broker([("message.max.bytes", "5")], BROKER, cluster_wide=True) == {
        "message.max.bytes": "5"
    }


@pytest.mark.parametrize(
    ("name", "value", "cluster_wide", "code", "words"),
    [
        ("log.retention.hours", "7", False, ErrorCode.INVALID_REQUEST, ["log.retention.hours", "restart"]),
        ("node.id", "7", False, ErrorCode.INVALID_REQUEST, ["node.id", "restart"]),
        (
            "sasl.enabled.mechanisms",
            "PLAIN",
            True,
            ErrorCode.INVALID_REQUEST,
            ["sasl.enabled.mechanisms", "broker's id"],
        ),
        (
            "ssl.keystore.password",
            "abc",
            False,
            ErrorCode.INVALID_REQUEST,
            ["listener.name.<listener>.ssl.keystore"],
        ),
        ("log.segment.bytes", "7", False, ErrorCode.INVALID_REQUEST, ["log.segment.bytes", "'7'", "1048576"]),
        ("log.segment.bytes", None, False, ErrorCode.INVALID_REQUEST, ["log.segment.bytes", "null"]),
        (
            "log.retention.ms",
            "0",
            False,
            ErrorCode.INVALID_REQUEST,
            ["log.retention.ms", "'0'", "-1 for no limit"],
        ),
        (
            "no.such.setting",
            "7",
            False,
            ErrorCode.INVALID_CONFIG,
            ["Unknown broker setting", "no.such.setting"],
        ),
        ("retention.ms", "7", True, ErrorCode.INVALID_CONFIG, ["topic setting", "log.retention.ms"]),
        ("log.cleaner.max.compaction.lag.ms", "0", True, ErrorCode.INVALID_REQUEST, ["at least 1"]),
    ],
)
def test_a_broker_refuses_as_kafka_does(
    name: str, value: str | None, cluster_wide: bool, code: ErrorCode, words: list[str]
) -> None:
    with pytest.raises(RequestError) as caught:
        broker(name, value, cluster_wide=cluster_wide)
    assert caught.value.code is code
    assert all(word in caught.value.message for word in words), caught.value.message


def test_brokers_accept_what_is_dynamic() -> None:
    assert broker("log.cleanup.policy", "compact", APPEND) == {"log.cleanup.policy": "delete,compact"}
    assert broker("log.retention.ms", "1800000", cluster_wide=True) == {"log.retention.ms": "1800000"}
    name = "listener.name.plaintext.max.connections"
    assert broker(name, "100") == {name: "100"}


def test_contradictions_between_dynamic_broker_settings_are_refused() -> None:
    current = {"log.cleaner.min.compaction.lag.ms": "9"}
    with pytest.raises(RequestError, match="9"):
        alter_broker(
            current, [Alteration("log.cleaner.max.compaction.lag.ms", SET, "5")], BROKER, cluster_wide=False
        )


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("consumer.session.timeout.ms", "5", ["group.consumer.min.session.timeout.ms is 45000"]),
        ("consumer.heartbeat.interval.ms", "99999", ["group.consumer.max.heartbeat.interval.ms is 15000"]),
        ("streams.num.standby.replicas", "3", ["group.streams.max.standby.replicas is 2"]),
        ("share.auto.offset.reset", "by_duration:soon", ["earliest", "PT1H"]),
        ("nono", "5", ["Unknown group setting 'nono'"]),
    ],
)
def test_a_group_stays_within_the_brokers_bounds(name: str, value: str, words: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        alter_group({}, [Alteration(name, SET, value)], BROKER)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert all(word in caught.value.message for word in words), caught.value.message


def test_a_group_whose_members_would_time_out_between_heartbeats_is_refused() -> None:
    bounds = ("group.consumer.min.session.timeout.ms", "group.consumer.min.heartbeat.interval.ms")
    broker = BrokerConfig.load(dict.fromkeys(bounds, "1000"))
    changes = [
        Alteration("consumer.session.timeout.ms", SET, "4000"),
        Alteration("consumer.heartbeat.interval.ms", SET, "4000"),
    ]
    with pytest.raises(RequestError, match="must be above consumer"):
        alter_group({}, changes, broker)
    assert alter_group({}, [changes[0], Alteration("consumer.heartbeat.interval.ms", SET, "3999")], broker)
    with pytest.raises(RequestError, match="5000"):
        alter_group({}, changes[:1], broker)  # the broker's own interval counts where the group has none


def test_a_group_accepts_what_is_within() -> None:
    changes = [
        Alteration("consumer.session.timeout.ms", SET, "50000"),
        Alteration("share.auto.offset.reset", SET, "by_duration:P1DT2H"),
    ]
    assert len(alter_group({}, changes, BROKER)) == 2


ENTRIES = st.lists(st.sampled_from(["0:1", "1:1", "2:3", "3:1", "4:2"]), unique=True)


@given(ENTRIES, ENTRIES)
def test_what_is_appended_can_be_subtracted_again(before: list[str], added: list[str]) -> None:
    name = "leader.replication.throttled.replicas"
    current = {name: ",".join(before)}
    grown = topic(name, ",".join(added), APPEND, current)
    assert set(grown[name].split(",")) - {""} == set(before) | set(added)
    shrunk = topic(name, ",".join(added), SUBTRACT, grown)
    assert shrunk[name] == ",".join(item for item in before if item not in added)
