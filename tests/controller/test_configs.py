"""AlterConfigs and IncrementalAlterConfigs answer as an Apache Kafka 4.3.1 broker does (codes recorded from one)."""

from __future__ import annotations

import pytest

from tests.controller.world import World, topic
from tidelog.controller.configs import Operation
from tidelog.controller.image import ResourceType
from tidelog.controller.metadata_records import ClearElrRecord, ConfigRecord, FeatureLevelRecord
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages import alter_configs as legacy
from tidelog.wire.messages import incremental_alter_configs as incremental

SET, DELETE, APPEND, SUBTRACT = Operation
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER

Change = tuple[str, int, str | None]


@pytest.fixture
def world() -> World:
    world = World()
    world.add_broker(1)
    world.create(topic("t"))
    return world


def request(
    *resources: tuple[int, str, list[Change]], validate_only: bool = False
) -> incremental.IncrementalAlterConfigsRequest:
    return incremental.IncrementalAlterConfigsRequest(
        [
            incremental.AlterConfigsResource(
                kind, name, [incremental.AlterableConfig(*change) for change in changes]
            )
            for kind, name, changes in resources
        ],
        validate_only,
    )


def change(world: World, *resources: tuple[int, str, list[Change]], validate_only: bool = False) -> list[E]:
    response = world.do(
        world.controller.incremental_alter_configs(request(*resources, validate_only=validate_only))
    )
    assert [(answer.resource_type, answer.resource_name) for answer in response.responses] == [
        (kind, name) for kind, name, _ in resources
    ]
    for answer in response.responses:
        assert (answer.error_message is None) == (answer.error_code == 0)
    return [E(answer.error_code) for answer in response.responses]


def replace(
    world: World, *resources: tuple[int, str, list[tuple[str, str | None]]], validate_only: bool = False
) -> list[E]:
    wanted = [
        legacy.AlterConfigsResource(kind, name, [legacy.AlterableConfig(*pair) for pair in pairs])
        for kind, name, pairs in resources
    ]
    response = world.do(world.controller.alter_configs(legacy.AlterConfigsRequest(wanted, validate_only)))
    return [E(answer.error_code) for answer in response.responses]


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "nope", [("retention.ms", SET, "5")], E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "nope", [], E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", [("retention.ms", SET, "5")], E.INVALID_TOPIC_EXCEPTION),
        (TOPIC, "", [("retention.ms", SET, "5")], E.INVALID_REQUEST),
        (TOPIC, "t", [("nope", SET, "5")], E.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, "x")], E.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], E.INVALID_REQUEST),
        (TOPIC, "t", [("cleanup.policy", APPEND, None)], E.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", APPEND, "5")], E.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SUBTRACT, "5")], E.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", 7, "5")], E.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", SET, "5"), ("retention.ms", DELETE, None)], E.INVALID_REQUEST),
        (BROKER, "9", [("log.retention.ms", SET, "5")], E.INVALID_REQUEST),
        (BROKER, "x", [("log.retention.ms", SET, "5")], E.INVALID_REQUEST),
        (BROKER, "-1", [("log.retention.ms", SET, "5")], E.INVALID_REQUEST),
        (BROKER, "1", [("node.id", SET, "5")], E.INVALID_REQUEST),
        (BROKER, "1", [("min.insync.replicas", SET, "2")], E.INVALID_CONFIG),
        (BROKER, "", [("min.insync.replicas", DELETE, None)], E.INVALID_CONFIG),
        (ResourceType.CLIENT_METRICS, "", [("interval.ms", SET, "5")], E.INVALID_REQUEST),
        (ResourceType.CLIENT_METRICS, "m", [("nope", SET, "5")], E.INVALID_REQUEST),
        (ResourceType.GROUP, "", [("consumer.session.timeout.ms", SET, "5")], E.INVALID_REQUEST),
        (ResourceType.GROUP, "g", [("nope", SET, "5")], E.INVALID_CONFIG),
        (ResourceType.BROKER_LOGGER, "1", [("root", SET, "INFO")], E.INVALID_REQUEST),
        (99, "1", [("root", SET, "INFO")], E.INVALID_REQUEST),
    ],
)
def test_a_change_that_is_refused_changes_nothing(
    world: World, kind: int, name: str, changes: list[Change], code: E
) -> None:
    before = world.image
    assert change(world, (kind, name, changes)) == [code]
    assert world.image is before


def test_settings_are_set_and_deleted(world: World) -> None:
    assert change(world, (TOPIC, "t", [("retention.ms", SET, "5")])) == [E.NONE]
    assert world.image.config(TOPIC, "t") == {"retention.ms": "5"}
    assert change(world, (TOPIC, "t", [("retention.ms", DELETE, "ignored")])) == [E.NONE]
    assert world.image.config(TOPIC, "t") == {}


@pytest.mark.parametrize(
    ("kind", "name", "key"),
    [
        (BROKER, "", "log.retention.ms"),
        (BROKER, "1", "log.retention.ms"),
        (ResourceType.GROUP, "g", "consumer.session.timeout.ms"),
        (ResourceType.CLIENT_METRICS, "m", "interval.ms"),
    ],
)
def test_other_resources_have_settings_too(world: World, kind: int, name: str, key: str) -> None:
    assert change(world, (kind, name, [(key, SET, "5")])) == [E.NONE]
    assert world.image.config(kind, name)[key] == "5"


def test_lists_grow_and_shrink_from_the_default_on(world: World) -> None:
    for operation, value, expected in [
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "foo", "compact"),
        (SUBTRACT, " compact ", ""),
        (APPEND, "", ""),
    ]:
        assert change(world, (TOPIC, "t", [("cleanup.policy", operation, value)])) == [E.NONE]
        assert world.image.config(TOPIC, "t") == {"cleanup.policy": expected}


def test_what_is_already_so_needs_no_record(world: World) -> None:
    change(world, (TOPIC, "t", [("retention.ms", SET, "5")]))
    again = world.controller.incremental_alter_configs(
        request((TOPIC, "t", [("retention.ms", SET, "5"), ("nope", DELETE, None)]))
    )
    assert again.records == []
    assert again.response.responses[0].error_code == 0


def test_each_resource_of_a_request_stands_for_itself(world: World) -> None:
    good: list[Change] = [("retention.ms", SET, "5")]
    assert change(world, (TOPIC, "t", good), (TOPIC, "nope", good)) == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION]
    assert world.image.config(TOPIC, "t") == {"retention.ms": "5"}


def test_a_resource_named_twice_is_refused_twice(world: World) -> None:
    one: tuple[int, str, list[Change]] = (TOPIC, "t", [("retention.ms", SET, "5")])
    other: tuple[int, str, list[Change]] = (TOPIC, "t", [("cleanup.policy", SET, "compact")])
    assert change(world, one, other) == [E.INVALID_REQUEST] * 2
    assert replace(world, (TOPIC, "t", []), (TOPIC, "t", [])) == [E.INVALID_REQUEST] * 2
    assert world.image.config(TOPIC, "t") == {}


def test_validate_only_judges_and_writes_nothing(world: World) -> None:
    assert change(world, (TOPIC, "t", [("retention.ms", SET, "5")]), validate_only=True) == [E.NONE]
    assert change(world, (TOPIC, "t", [("retention.ms", SET, "x")]), validate_only=True) == [E.INVALID_CONFIG]
    assert replace(world, (TOPIC, "t", [("retention.ms", "5")]), validate_only=True) == [E.NONE]
    assert world.image.config(TOPIC, "t") == {}


def test_the_old_api_replaces_everything_the_resource_has(world: World) -> None:
    assert replace(world, (TOPIC, "t", [("retention.ms", "9"), ("cleanup.policy", "compact")])) == [E.NONE]
    assert replace(world, (TOPIC, "t", [("retention.ms", "8")])) == [E.NONE]
    assert world.image.config(TOPIC, "t") == {"retention.ms": "8"}
    assert replace(world, (TOPIC, "t", [])) == [E.NONE]
    assert world.image.config(TOPIC, "t") == {}


@pytest.mark.parametrize(
    ("kind", "name", "pairs", "code"),
    [
        (TOPIC, "nope", [], E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", [("retention.ms", None)], E.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", "9"), ("retention.ms", "8")], E.INVALID_REQUEST),
        (TOPIC, "t", [("nope", "9")], E.INVALID_CONFIG),
        (BROKER, "1", [("node.id", "9")], E.INVALID_REQUEST),
        (BROKER, "", [("log.retention.ms", "9")], E.INVALID_CONFIG),  # it would remove min.insync.replicas
        (ResourceType.BROKER_LOGGER, "1", [("root", "INFO")], E.INVALID_REQUEST),
    ],
)
def test_the_old_api_refuses_the_same(
    world: World, kind: int, name: str, pairs: list[tuple[str, str | None]], code: E
) -> None:
    before = world.image
    assert replace(world, (kind, name, pairs)) == [code]
    assert world.image is before


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "t"), (BROKER, "")])
def test_a_new_min_insync_replicas_clears_the_elr_that_was_counted_with_the_old(
    world: World, kind: int, name: str
) -> None:
    result = world.controller.incremental_alter_configs(
        request((kind, name, [("min.insync.replicas", SET, "2")]))
    )
    assert result.records == [ConfigRecord(kind, name, "min.insync.replicas", "2"), ClearElrRecord(name)]


def test_without_elr_min_insync_replicas_is_a_setting_like_others(world: World) -> None:
    world.write([FeatureLevelRecord("eligible.leader.replicas.version", 0)])
    result = world.controller.incremental_alter_configs(
        request((BROKER, "1", [("min.insync.replicas", SET, "2")]))
    )
    assert result.records == [ConfigRecord(BROKER, "1", "min.insync.replicas", "2")]


def test_one_request_cannot_hold_any_number_of_settings() -> None:
    world = World(records_per_request_max=3)
    world.add_broker(1)
    groups: list[tuple[int, str, list[Change]]] = [
        (ResourceType.GROUP, f"g{number}", [("consumer.session.timeout.ms", SET, "5")]) for number in range(5)
    ]
    assert change(world, *groups) == [E.NONE] * 3 + [E.POLICY_VIOLATION] * 2
