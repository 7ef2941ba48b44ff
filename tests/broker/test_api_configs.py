"""Settings: described, altered, listed; and what a change does to the next produce."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.conftest import NOW_MS, OwnBroker, Topic, Wire, batch, code
from tidelog.records.compression import Codec
from tidelog.wire.messages import alter_configs, incremental_alter_configs
from tidelog.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidelog.wire.messages.list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, DYNAMIC_LOGGER = 1, 2, 3, 4, 5, 6


def describe(wire: Wire, kind: int, name: str, *keys: str, every: list[str] | None = None) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) if keys else every
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = wire.ask(request).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def value(wire: Wire, kind: int, name: str, key: str) -> tuple[str | None, int]:
    (config,) = describe(wire, kind, name, key).configs
    return config.value, config.config_source


def synonyms(wire: Wire, kind: int, name: str, key: str) -> list[tuple[str, str | None, int]]:
    (config,) = describe(wire, kind, name, key).configs
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def alter(
    wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> str:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=key, config_operation=operation, value=text)
            for key, operation, text in changes
        ],
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )
    (result,) = wire.ask(request).responses
    assert bool(result.error_message) == (result.error_code != 0) or result.error_code == -1
    return code(result)


def replace(wire: Wire, kind: int, name: str, *settings: tuple[str, str | None]) -> str:
    resource = alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=key, value=text) for key, text in settings],
    )
    (result,) = wire.ask(alter_configs.AlterConfigsRequest(resources=[resource])).responses
    return code(result)


def node(wire: Wire) -> str:
    return str(wire.metadata().brokers[0].node_id)


# ---- DescribeConfigs


def test_a_topic_is_described(wire: Wire, name: str) -> None:
    wire.create(name, retention_ms="86400000")
    assert value(wire, TOPIC, name, "retention.ms") == ("86400000", DYNAMIC_TOPIC)
    assert synonyms(wire, TOPIC, name, "retention.ms") == [("retention.ms", "86400000", DYNAMIC_TOPIC)]
    assert value(wire, TOPIC, name, "cleanup.policy") == ("delete", DEFAULT)
    assert synonyms(wire, TOPIC, name, "cleanup.policy") == [("log.cleanup.policy", "delete", DEFAULT)]


@pytest.mark.parametrize("keys", [None, []])
def test_no_keys_asks_for_all(wire: Wire, topic: Topic, keys: list[str] | None) -> None:
    assert len(describe(wire, TOPIC, topic.name, every=keys).configs) > 30


def test_unknown_keys_are_left_out(wire: Wire, topic: Topic) -> None:
    found = describe(wire, TOPIC, topic.name, "retention.ms", "nope").configs
    assert [config.name for config in found] == ["retention.ms"]


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (TOPIC, "", "INVALID_TOPIC_EXCEPTION"),
        (TOPIC, "a b", "INVALID_TOPIC_EXCEPTION"),
        (TOPIC, "t-nope", "UNKNOWN_TOPIC_OR_PARTITION"),
        (BROKER, "77", "INVALID_REQUEST"),
        (BROKER, "abc", "INVALID_REQUEST"),
        (LOGGER, "", "INVALID_REQUEST"),
        (LOGGER, "77", "INVALID_REQUEST"),
        (LOGGER, "abc", "INVALID_REQUEST"),
        (GROUP, "", "INVALID_REQUEST"),
        (GROUP, "any", "NONE"),
        (BROKER, "", "NONE"),
        (0, "x", "INVALID_REQUEST"),
        (64, "x", "INVALID_REQUEST"),
    ],
)
def test_resources_that_cannot_be_described(wire: Wire, kind: int, name: str, expected: str) -> None:
    assert code(describe(wire, kind, name)) == expected


def test_a_broker_is_described(wire: Wire, foreign: bool) -> None:
    configs = {config.name: config for config in describe(wire, BROKER, node(wire)).configs}
    assert {"advertised.listeners", "log.retention.hours", "node.id"} <= configs.keys(), "tools need them"
    assert configs["node.id"].read_only
    assert (configs["ssl.keystore.password"].is_sensitive, configs["ssl.keystore.password"].value) == (
        True,
        None,
    )
    if not foreign:
        assert configs["log.dirs"].config_source == STATIC


# ---- IncrementalAlterConfigs on topics


def test_set_and_delete(wire: Wire, topic: Topic) -> None:
    assert alter(wire, TOPIC, topic.name, ("retention.ms", SET, "1234567")) == "NONE"
    assert value(wire, TOPIC, topic.name, "retention.ms") == ("1234567", DYNAMIC_TOPIC)
    assert alter(wire, TOPIC, topic.name, ("retention.ms", SET, "99"), validate_only=True) == "NONE"
    assert value(wire, TOPIC, topic.name, "retention.ms") == ("1234567", DYNAMIC_TOPIC)
    assert alter(wire, TOPIC, topic.name, ("retention.ms", DELETE, None)) == "NONE"
    assert value(wire, TOPIC, topic.name, "retention.ms") == ("604800000", DEFAULT)
    assert alter(wire, TOPIC, topic.name, ("no.such.setting", DELETE, None)) == "NONE"


def test_append_and_subtract(wire: Wire, topic: Topic) -> None:
    assert alter(wire, TOPIC, topic.name, ("cleanup.policy", APPEND, "compact")) == "NONE"
    assert value(wire, TOPIC, topic.name, "cleanup.policy") == ("delete,compact", DYNAMIC_TOPIC)
    assert alter(wire, TOPIC, topic.name, ("cleanup.policy", SUBTRACT, "delete")) == "NONE"
    assert value(wire, TOPIC, topic.name, "cleanup.policy") == ("compact", DYNAMIC_TOPIC)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([("retention.ms", SET, "x")], "INVALID_CONFIG"),
        ([("foo", SET, "x")], "INVALID_CONFIG"),
        ([("retention.ms", APPEND, "5")], "INVALID_CONFIG"),
        ([("retention.ms", SET, None)], "INVALID_REQUEST"),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], "INVALID_REQUEST"),
        ([("retention.ms", SET, "7"), ("foo", SET, "x")], "INVALID_CONFIG"),
    ],
)
def test_a_refused_change_changes_nothing(
    wire: Wire, topic: Topic, changes: list[tuple[str, int, str | None]], expected: str
) -> None:
    assert alter(wire, TOPIC, topic.name, *changes) == expected
    assert value(wire, TOPIC, topic.name, "retention.ms") == ("604800000", DEFAULT)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        (TOPIC, "t-nope", "UNKNOWN_TOPIC_OR_PARTITION"),
        (TOPIC, "a b", "INVALID_TOPIC_EXCEPTION"),
        (TOPIC, "", "INVALID_REQUEST"),
        (BROKER, "77", "INVALID_REQUEST"),
        (BROKER, "abc", "INVALID_REQUEST"),
        (GROUP, "", "INVALID_REQUEST"),
        (0, "x", "INVALID_REQUEST"),
    ],
)
def test_resources_that_cannot_be_altered(wire: Wire, kind: int, name: str, expected: str) -> None:
    assert alter(wire, kind, name, ("log.retention.ms" if kind == BROKER else "retention.ms", SET, "5")) == (
        expected
    )


def test_a_resource_twice_in_a_request(wire: Wire, topic: Topic) -> None:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=TOPIC,
        resource_name=topic.name,
        configs=[incremental_alter_configs.AlterableConfig(name="retention.ms", value="5")],
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource] * 2)
    assert {code(result) for result in wire.ask(request).responses} == {"INVALID_REQUEST"}


def test_good_and_bad_resources_in_a_request(wire: Wire, topic: Topic, nowhere: Topic) -> None:
    resources = [
        incremental_alter_configs.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[incremental_alter_configs.AlterableConfig(name=key, value="1000")],
        )
        for kind, name, key in (
            (TOPIC, nowhere.name, "retention.ms"),
            (LOGGER, node(wire), "no.such.logger"),
            (TOPIC, topic.name, "retention.ms"),
        )
    ]
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=resources)
    results = {(r.resource_type, r.resource_name): code(r) for r in wire.ask(request).responses}
    assert results == {
        (TOPIC, nowhere.name): "UNKNOWN_TOPIC_OR_PARTITION",
        (LOGGER, node(wire)): "INVALID_CONFIG",
        (TOPIC, topic.name): "NONE",
    }
    assert value(wire, TOPIC, topic.name, "retention.ms") == ("1000", DYNAMIC_TOPIC)


# ---- AlterConfigs


def test_alter_configs_replaces_everything(wire: Wire, topic: Topic, nowhere: Topic) -> None:
    alter(wire, TOPIC, topic.name, ("retention.ms", SET, "1234567"))
    assert replace(wire, TOPIC, topic.name, ("max.message.bytes", "5000")) == "NONE"
    assert value(wire, TOPIC, topic.name, "retention.ms") == ("604800000", DEFAULT)
    assert value(wire, TOPIC, topic.name, "max.message.bytes") == ("5000", DYNAMIC_TOPIC)
    assert replace(wire, TOPIC, topic.name, ("max.message.bytes", None)) == "INVALID_REQUEST"
    assert replace(wire, TOPIC, topic.name, ("max.message.bytes", "x")) == "INVALID_CONFIG"
    assert replace(wire, TOPIC, topic.name, ("foo", "x")) == "INVALID_CONFIG"
    assert value(wire, TOPIC, topic.name, "max.message.bytes") == ("5000", DYNAMIC_TOPIC)
    assert replace(wire, TOPIC, topic.name) == "NONE"
    assert value(wire, TOPIC, topic.name, "max.message.bytes") == ("1048588", DEFAULT)
    assert replace(wire, TOPIC, nowhere.name) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert replace(wire, LOGGER, node(wire), ("root", "INFO")) == "INVALID_REQUEST"
    assert replace(wire, BROKER, "abc") == "INVALID_REQUEST"


# ---- brokers, groups, loggers


@pytest.fixture
def own(launch: Any) -> OwnBroker:
    broker: OwnBroker = launch()
    return broker


def test_precedence_of_broker_settings(own: OwnBroker) -> None:
    """Topic over this broker over all brokers over the default: for topics, too, and across a restart."""
    wire = own.connect()
    wire.create("t")
    assert alter(wire, BROKER, "", ("log.retention.ms", SET, "8000000")) == "NONE"
    assert value(wire, TOPIC, "t", "retention.ms") == ("8000000", DYNAMIC_DEFAULT)
    assert alter(wire, BROKER, "0", ("log.retention.ms", SET, "7000000")) == "NONE"
    assert value(wire, TOPIC, "t", "retention.ms") == ("7000000", DYNAMIC_BROKER)
    assert alter(wire, TOPIC, "t", ("retention.ms", SET, "6000000")) == "NONE"
    for restarted in (False, True):
        if restarted:
            own.restart()
            wire = own.connect()
        assert value(wire, TOPIC, "t", "retention.ms") == ("6000000", DYNAMIC_TOPIC)
        assert synonyms(wire, TOPIC, "t", "retention.ms") == [
            ("retention.ms", "6000000", DYNAMIC_TOPIC),
            ("log.retention.ms", "7000000", DYNAMIC_BROKER),
            ("log.retention.ms", "8000000", DYNAMIC_DEFAULT),
            ("log.retention.hours", "168", DEFAULT),
        ]
        assert value(wire, BROKER, "0", "log.retention.ms") == ("7000000", DYNAMIC_BROKER)
        assert value(wire, BROKER, "", "log.retention.ms") == ("8000000", DYNAMIC_DEFAULT)
    for kind, name, key in ((TOPIC, "t", "retention.ms"), (BROKER, "0", "log.retention.ms")):
        alter(wire, kind, name, (key, DELETE, None))
    assert value(wire, TOPIC, "t", "retention.ms") == ("8000000", DYNAMIC_DEFAULT)
    alter(wire, BROKER, "", ("log.retention.ms", DELETE, None))
    assert value(wire, TOPIC, "t", "retention.ms") == ("604800000", DEFAULT)


def test_broker_settings_that_cannot_be_changed(own: OwnBroker) -> None:
    wire = own.connect()
    assert alter(wire, BROKER, "0", ("node.id", SET, "5")) == "INVALID_REQUEST"
    assert alter(wire, BROKER, "0", ("log.retention.ms", SET, "x")) == "INVALID_REQUEST"
    assert alter(wire, BROKER, "", ("listeners", SET, "PLAINTEXT://:1")) == "INVALID_REQUEST"


def test_groups(wire: Wire, name: str) -> None:
    key = "consumer.session.timeout.ms"
    assert value(wire, GROUP, name, key) == ("45000", DEFAULT)
    assert alter(wire, GROUP, name, (key, SET, "50000")) == "NONE"
    assert value(wire, GROUP, name, key)[0] == "50000"
    assert alter(wire, GROUP, name, (key, SET, "5")) == "INVALID_CONFIG"
    assert value(wire, GROUP, name, key)[0] == "50000"
    assert alter(wire, GROUP, name, (key, DELETE, None)) == "NONE"


@pytest.fixture
def quiet_loggers() -> Iterator[None]:
    """Levels belong to the process, and so to every other test in it."""
    kept = [(logger, logger.level) for logger in (logging.root, logging.getLogger("tidelog.broker"))]
    yield
    for logger, level in kept:
        logger.setLevel(level)


@pytest.mark.usefixtures("quiet_loggers")
def test_loggers(own: OwnBroker) -> None:
    wire = own.connect()
    assert alter(wire, LOGGER, "0", ("tidelog.broker", SET, "ERROR")) == "NONE"
    assert value(wire, LOGGER, "0", "tidelog.broker") == ("ERROR", DYNAMIC_LOGGER)
    assert logging.getLogger("tidelog.broker").level == logging.ERROR
    assert alter(wire, LOGGER, "0", ("tidelog.broker", SET, "DEBUG"), validate_only=True) == "NONE"
    assert value(wire, LOGGER, "0", "tidelog.broker") == ("ERROR", DYNAMIC_LOGGER)
    assert alter(wire, LOGGER, "0", ("tidelog.broker", DELETE, None)) == "NONE"
    assert logging.getLogger("tidelog.broker").level == logging.NOTSET


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("", ("nope", SET, "INFO"), "INVALID_CONFIG"),
        ("", ("root", SET, "LOUD"), "INVALID_CONFIG"),
        ("", ("root", DELETE, None), "INVALID_REQUEST"),
        ("", ("root", APPEND, "INFO"), "INVALID_REQUEST"),
        ("77", ("root", SET, "INFO"), "INVALID_REQUEST"),
    ],
)
def test_loggers_that_cannot_be_changed(
    wire: Wire, name: str, change: tuple[str, int, str | None], expected: str
) -> None:
    assert alter(wire, LOGGER, name or node(wire), change) == expected


# ---- ListConfigResources


def listed(wire: Wire, *types: int, version: int | None = None) -> set[tuple[int, str]]:
    response = wire.ask(ListConfigResourcesRequest(resource_types=list(types)), version)
    assert response.error_code == 0
    return {(found.resource_type, found.resource_name) for found in response.config_resources}


def test_listing_resources(wire: Wire, topic: Topic, name: str) -> None:
    group = (GROUP, name + "-group")
    alter(wire, *group, ("consumer.session.timeout.ms", SET, "50000"))
    this = node(wire)
    everything = listed(wire)
    assert {(TOPIC, topic.name), (BROKER, this), (LOGGER, this), group} <= everything
    assert {kind for kind, _ in listed(wire, TOPIC)} == {TOPIC}
    assert group in listed(wire, GROUP)
    assert {(BROKER, this), (LOGGER, this)} <= listed(wire, BROKER, LOGGER)
    assert {kind for kind, _ in listed(wire, version=0)} <= {CLIENT_METRICS}
    for unknown in (0, 99):
        assert code(wire.ask(ListConfigResourcesRequest(resource_types=[unknown]))) == "UNSUPPORTED_VERSION"
    alter(wire, *group, ("consumer.session.timeout.ms", DELETE, None))


# ---- what a change does


def test_max_message_bytes_counts_at_once(wire: Wire, topic: Topic, foreign: bool) -> None:
    if foreign:
        pytest.skip("Kafka applies it a little later")
    records = batch(b"x" * 2000)
    assert code(wire.produce(topic, records)) == "NONE"
    alter(wire, TOPIC, topic.name, ("max.message.bytes", SET, "1000"))
    assert code(wire.produce(topic, records)) == "MESSAGE_TOO_LARGE"
    alter(wire, TOPIC, topic.name, ("max.message.bytes", DELETE, None))
    assert code(wire.produce(topic, records)) == "NONE"


def test_compression_type_counts_at_once(own: OwnBroker) -> None:
    wire = own.connect()
    topic = wire.create("t")
    for kind, name, key in ((TOPIC, "t", "compression.type"), (BROKER, "", "compression.type")):
        assert alter(wire, kind, name, (key, SET, "lz4")) == "NONE"
        offset = wire.produce(topic, batch(b"x" * 500)).base_offset
        assert bytes(wire.fetch(topic, offset).records)[22] & 7 == Codec.LZ4
        alter(wire, kind, name, (key, DELETE, None))
        offset = wire.produce(topic, batch(b"x" * 500)).base_offset
        assert bytes(wire.fetch(topic, offset).records)[22] & 7 == Codec.NONE


def test_timestamp_type_counts_at_once(own: OwnBroker) -> None:
    wire = own.connect()
    topic = wire.create("t")
    assert wire.produce(topic, batch(timestamp=1000)).log_append_time_ms == -1
    alter(wire, TOPIC, "t", ("message.timestamp.type", SET, "LogAppendTime"))
    assert wire.produce(topic, batch(timestamp=1000)).log_append_time_ms >= NOW_MS
    alter(wire, BROKER, "", ("log.message.timestamp.after.max.ms", SET, "5000"))
    alter(wire, TOPIC, "t", ("message.timestamp.type", SET, "CreateTime"))
    late = batch(timestamp=time.time_ns() // 1_000_000 + 60_000)
    assert code(wire.produce(topic, late)) == "INVALID_TIMESTAMP"


def test_retention_counts_at_the_next_check(launch: Any) -> None:
    wire = launch(log_retention_check_interval_ms=100).connect()
    topic = wire.create("t")
    wire.produce(topic, batch(timestamp=NOW_MS - 3_600_000))
    alter(wire, TOPIC, "t", ("retention.ms", SET, "60000"))
    wait_until(lambda: wire.offset_at(topic, -2).offset == 1)
    assert code(wire.fetch(topic, 0)) == "OFFSET_OUT_OF_RANGE"
    assert wire.produce(topic, batch()).base_offset == 1


def test_durability_can_be_changed_both_ways(own: OwnBroker) -> None:
    wire = own.connect()
    topic = wire.create("t")
    for durability in ("fsync", "replicated", "fsync"):
        assert alter(wire, TOPIC, "t", ("durability", SET, durability)) == "NONE"
        assert code(wire.produce(topic, batch())) == "NONE"
    assert wire.fetch(topic).high_watermark == 3


def test_topic_settings_survive_a_restart(own: OwnBroker) -> None:
    wire = own.connect()
    topic = wire.create("t", max_message_bytes="1000")
    own.restart()
    wire = own.connect()
    assert value(wire, TOPIC, "t", "max.message.bytes") == ("1000", DYNAMIC_TOPIC)
    assert code(wire.produce(topic, batch(b"x" * 2000))) == "MESSAGE_TOO_LARGE"


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
