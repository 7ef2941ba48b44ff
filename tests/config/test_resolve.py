"""Which value counts, and which configurations cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config import BrokerConfig, ConfigError, Endpoint, TopicConfig

UNITS = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
AMOUNTS = st.one_of(st.just(-1), st.integers(1, 500))


@given(
    topic=st.none() | st.integers(-1, 500),
    node=st.none() | AMOUNTS,
    default=st.none() | AMOUNTS,
    static=st.dictionaries(st.sampled_from(sorted(UNITS)), AMOUNTS),
)
def test_retention_is_taken_from_the_strongest_layer_and_there_from_the_finest_unit(
    topic: int | None, node: int | None, default: int | None, static: dict[str, int]
) -> None:
    broker = BrokerConfig.load({name: str(amount) for name, amount in static.items()}).with_dynamic(
        node={} if node is None else {"log.retention.ms": str(node)},
        default={} if default is None else {"log.retention.ms": str(default)},
    )
    resolved = TopicConfig.resolve({} if topic is None else {"retention.ms": str(topic)}, broker).int(
        "retention.ms"
    )

    in_file = [
        amount * UNITS[name] if amount > 0 else -1
        for name in UNITS
        if (amount := static.get(name)) is not None
    ]
    candidates = [topic, node, default, *in_file, 168 * 3_600_000]
    assert resolved == next(value for value in candidates if value is not None)


@given(st.permutations(["topic", "node", "default", "static"]), st.integers(0, 4))
def test_removing_the_strongest_layer_uncovers_the_next(order: list[str], keep: int) -> None:
    sizes = {"topic": 1 << 21, "node": 1 << 22, "default": 1 << 23, "static": 1 << 24}
    kept = set(order[:keep])
    text = {layer: str(size) for layer, size in sizes.items() if layer in kept}
    broker = BrokerConfig.load(
        {"log.segment.bytes": text["static"]} if "static" in text else {}
    ).with_dynamic(
        node={"log.segment.bytes": text["node"]} if "node" in text else {},
        default={"log.segment.bytes": text["default"]} if "default" in text else {},
    )
    topic = TopicConfig.resolve({"segment.bytes": text["topic"]} if "topic" in text else {}, broker)
    assert topic.int("segment.bytes") == next(
        (size for layer, size in sizes.items() if layer in kept), 1 << 30
    )
    in_broker = kept - {"topic"}
    assert broker.int("log.segment.bytes") == next(
        (s for layer, s in sizes.items() if layer in in_broker), 1 << 30
    )


def test_roll_and_flush_fall_back_across_units() -> None:
    broker = BrokerConfig.load(
        {"log.roll.hours": "3", "log.roll.jitter.hours": "1", "log.flush.scheduler.interval.ms": "7777"}
    )
    topic = TopicConfig.resolve({}, broker)
    assert (topic["segment.ms"], topic["segment.jitter.ms"], topic["flush.ms"]) == (
        10_800_000,
        3_600_000,
        7777,
    )


def test_an_empty_configuration_is_a_working_broker() -> None:
    config = BrokerConfig.load()
    assert config.node_id == config.int("broker.id") == 0
    assert config.log_dirs == ("./tidelog-data",)
    assert config.listeners == (Endpoint("PLAINTEXT", "127.0.0.1", 9092),) == config.advertised
    assert config.without_effect() == []


# Kafka's own KRaft example, as it ships.
SHIPPED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "inter.broker.listener.name": "PLAINTEXT",
    "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
    "num.network.threads": "3",
    "num.io.threads": "16",
    "socket.send.buffer.bytes": "102400",
    "log.dirs": "/tmp/kraft-combined-logs",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


def test_kafkas_own_file_loads_and_what_changes_nothing_is_listed() -> None:
    config = BrokerConfig.load({**SHIPPED, "zookeeper.connect": "x:2181", "super.users": "User:a"})
    assert config.listeners == (
        Endpoint("PLAINTEXT", "", 9092),
        Endpoint("CONTROLLER", "", 9093, for_controllers=True),
    )
    assert str(config.advertised[0]) == "PLAINTEXT://localhost:9092"
    listed = {line.partition(":")[0] for line in config.without_effect()}
    assert config.inter_broker_listener == "PLAINTEXT"
    assert listed == {
        "num.io.threads",
        "zookeeper.connect",
        "super.users",
    }


@pytest.mark.parametrize("given_name", ["node.id", "broker.id"])
def test_both_names_of_the_node_id_work(given_name: str) -> None:
    config = BrokerConfig.load({given_name: "7"})
    assert config.node_id == config.int("broker.id") == 7


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"retention.ms": "1"}, ["Unknown broker setting 'retention.ms'", "log.retention.ms"]),
        ({"port": "9092"}, ["port", "listeners"]),
        ({"log.retention.ms": "0"}, ["log.retention.ms", "'0'", "at least 1, or -1"]),
        ({"node.id": "1", "broker.id": "2"}, ["node.id", "broker.id", "agree"]),
        ({"listeners": "9092"}, ["listeners", "'9092'", "NAME://host:port"]),
        ({"listeners": "PLAINTEXT://a:99999"}, ["PLAINTEXT://a:99999"]),
        ({"listeners": "INTERNAL://:9092"}, ["INTERNAL:PLAINTEXT", "listener.security.protocol.map"]),
        ({"listeners": "SSL://:9093"}, ["SSL", "only PLAINTEXT"]),
        ({"listeners": "PLAINTEXT://:9092,PLAINTEXT://:9093"}, ["twice"]),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, ["advertised.listeners", "0.0.0.0"]),
        (
            {"listeners": "A://h:1,B://h:1", "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT"},
            ["both use port 1"],
        ),
        ({"advertised.listeners": "SSL://h:1"}, ["SSL is not one of listeners (PLAINTEXT)"]),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, ["'PLAINTEXT:TLS'", "SASL_SSL"]),
        ({"inter.broker.listener.name": "INTERNAL"}, ["inter.broker.listener.name", "INTERNAL"]),
        ({"controller.listener.names": "PLAINTEXT"}, ["no client could connect"]),
        ({"process.roles": "broker"}, ["without a controller", "controller.quorum.voters"]),
        (
            {"process.roles": "broker", "controller.quorum.voters": "0@a:1,1@b:1,2@c:1"},
            ["controller.quorum.voters", "node 0", "process.roles"],
        ),
        ({"controller.quorum.voters": "0@a:1,1@b:1,2@c:1"}, ["controller.listener.names", "listeners"]),
        ({"controller.quorum.voters": "5@a:1"}, ["node 0", "names 5", "controller.quorum.voters"]),
        ({"controller.quorum.bootstrap.servers": "a:1,b:1"}, ["2 controllers", "controller.quorum.voters"]),
        ({"group.min.session.timeout.ms": "9", "group.max.session.timeout.ms": "8"}, ["(9)", "(8)"]),
        ({"group.consumer.session.timeout.ms": "6000"}, ["group.consumer.min.session.timeout.ms (45000)", "(6000)"]),
        (
            {"group.consumer.heartbeat.interval.ms": "60000", "group.consumer.max.heartbeat.interval.ms": "60000"},
            ["(60000)", "between two heartbeats"],
        ),
        ({"group.consumer.assignors": "mine"}, ["group.consumer.assignors", "uniform"]),
        ({"group.consumer.assignors": ""}, ["group.consumer.assignors"]),
        ({"authorizer.class.name": "org.example.Rules"}, ["authorizer.class.name", "org.example.Rules", "must stay empty"]),
        ({"create.topic.policy.class.name": "x.Y"}, ["create.topic.policy.class.name", "leave it out"]),
        ({"remote.log.storage.system.enable": "true"}, ["remote.log.storage.system.enable", "only 'false'"]),
        ({"security.inter.broker.protocol": "SSL"}, ["security.inter.broker.protocol", "only 'PLAINTEXT'"]),
    ],
)  # fmt: skip
def test_an_impossible_configuration_is_refused_with_its_reason(
    properties: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(properties)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load({"num.partitions": "0", "nonsense": "1", "log.preallocate": "maybe"})
    assert len(caught.value.problems) == 3


def test_refused_settings_may_state_their_default() -> None:
    BrokerConfig.load(
        {"authorizer.class.name": "", "remote.log.storage.system.enable": "FALSE", "config.providers": ""}
    )


def test_ipv6_and_free_ports() -> None:
    config = BrokerConfig.load({"listeners": "PLAINTEXT://[::1]:0"})
    (endpoint,) = config.listeners
    assert (endpoint.host, endpoint.port, str(endpoint)) == ("::1", 0, "PLAINTEXT://[::1]:0")
    assert str(endpoint.with_address("localhost", 40001)) == "PLAINTEXT://localhost:40001"


def test_stored_settings_of_another_release_do_not_stop_a_broker() -> None:
    broker = BrokerConfig.load().with_dynamic(node={"from.the.future": "1", "log.segment.bytes": "3"})
    assert broker.int("log.segment.bytes") == 1 << 30
    assert len(broker.ignored) == 2 and "from.the.future" in broker.ignored[0]
    topic = TopicConfig.resolve({"future.topic": "1", "retention.ms": "x"}, broker)
    assert topic.int("retention.ms") == 604_800_000 and len(topic.ignored) == 2


def test_a_new_layer_leaves_the_old_configuration_alone() -> None:
    before = BrokerConfig.load({"num.partitions": "3"})
    after = before.with_dynamic(default={"message.max.bytes": "2000000"})
    assert (before.int("message.max.bytes"), after.int("message.max.bytes")) == (1_048_588, 2_000_000)
    assert after.with_dynamic(node={"message.max.bytes": "5"}).int("message.max.bytes") == 5
    assert after.with_dynamic(default={}).int("message.max.bytes") == 1_048_588


def test_a_controller_alone_needs_no_listener_for_clients() -> None:
    config = BrokerConfig.load(
        {
            "node.id": "100",
            "process.roles": "controller",
            "listeners": "CONTROLLER://127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "100@127.0.0.1:9093",
        }
    )
    assert [endpoint.for_controllers for endpoint in config.listeners] == [True]
    assert config.advertised == ()
