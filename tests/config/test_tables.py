"""The tables agree with themselves and with what Kafka 4.3.1 says about its own settings."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tidelog.config
from tidelog.config.broker_settings import BROKER_SETTINGS, FAMILIES, SECTIONS, find, listener_base
from tidelog.config.definition import (
    SAME_AS_KAFKA,
    ConfigType,
    Effect,
    Scope,
    Setting,
    UpdateMode,
    format_double,
)
from tidelog.config.group_settings import GROUP_SETTINGS
from tidelog.config.sources import environment_name
from tidelog.config.topic_settings import TOPIC_SETTINGS

EVERY = [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values()]
THROTTLES = {
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}

OURS = {
    "connections.max.held.bytes",
    "durability",
    "group.heartbeat.max.held.ms",
    "group.join.gather.ms",
    "log.dir.reserve.bytes",
    "log.scrub.bytes.per.second",
    "log.scrub.interval.ms",
}


def test_every_name_of_kafka_is_there_and_few_are_ours() -> None:
    assert len(set(BROKER_SETTINGS) - THROTTLES - OURS) == 360
    assert len(set(TOPIC_SETTINGS) - {"durability"}) == 34
    assert len(GROUP_SETTINGS) == 17
    assert sum(len(rows) for rows in SECTIONS.values()) == len(BROKER_SETTINGS), "a name stands in two tables"


@pytest.mark.parametrize("setting", EVERY, ids=lambda setting: f"{setting.scope.value}:{setting.name}")
def test_a_default_is_a_value_the_setting_accepts(setting: Setting) -> None:
    if setting.default is not None:
        text = setting.default_text
        assert text is not None
        assert setting.parse(text) == setting.default
        assert type(setting.parse(text)) is type(setting.default)
        assert setting.normalized(text) == text
    assert setting.doc.endswith(".") and len(setting.doc) < 230
    assert "|" not in setting.doc
    assert setting.allowed


def test_scopes_match_their_tables() -> None:
    assert {row.scope for row in BROKER_SETTINGS.values()} == {Scope.BROKER}
    assert {row.scope for row in TOPIC_SETTINGS.values()} == {Scope.TOPIC}
    assert {row.scope for row in GROUP_SETTINGS.values()} == {Scope.GROUP}


@pytest.mark.parametrize(
    "setting", [*TOPIC_SETTINGS.values(), *GROUP_SETTINGS.values()], ids=lambda row: row.name
)
def test_a_fallback_chain_ends_in_the_settings_own_default(setting: Setting) -> None:
    """Otherwise a topic would change its value when a broker states its default aloud."""
    for fallback in setting.fallbacks:
        broker = BROKER_SETTINGS[fallback.name]
        if broker.default is not None:
            assert fallback.convert(broker.default) == setting.default
            assert broker.effect is setting.effect
    if setting.fallbacks:
        last = BROKER_SETTINGS[setting.fallbacks[-1].name]
        assert last.default is not None


def test_a_default_that_differs_has_a_reason() -> None:
    for row in EVERY:
        assert (row.kafka_default is SAME_AS_KAFKA) == (row.reason == ""), row.name
        assert row.kafka_default != row.default, row.name


def test_variables_of_the_environment_are_unambiguous() -> None:
    assert len({environment_name(name) for name in BROKER_SETTINGS}) == len(BROKER_SETTINGS)


def test_families_are_known_names() -> None:
    assert all(name in BROKER_SETTINGS for family in FAMILIES for name in family)


# name, type, default, update mode: what a 4.3.1 broker reports.
RECORDED = [
    ("auto.create.topics.enable", "BOOLEAN", "true", "read-only"),
    ("compression.type", "STRING", "producer", "cluster-wide"),
    ("connections.max.idle.ms", "LONG", "600000", "read-only"),
    ("fetch.max.bytes", "INT", "57671680", "read-only"),
    ("log.cleaner.io.buffer.load.factor", "DOUBLE", "0.9", "cluster-wide"),
    ("log.flush.interval.ms", "LONG", None, "cluster-wide"),
    ("log.retention.hours", "INT", "168", "read-only"),
    ("log.retention.ms", "LONG", None, "cluster-wide"),
    ("max.incremental.fetch.session.cache.slots", "INT", "1000", "read-only"),
    ("message.max.bytes", "INT", "1048588", "cluster-wide"),
    ("num.recovery.threads.per.data.dir", "INT", "2", "cluster-wide"),
    ("offsets.topic.replication.factor", "SHORT", "3", "read-only"),
    ("principal.builder.class", "CLASS",
     "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder", "per-broker"),
    ("sasl.enabled.mechanisms", "LIST", "GSSAPI", "per-broker"),
    ("sasl.login.refresh.window.jitter", "DOUBLE", "0.05", "per-broker"),
    ("ssl.keystore.password", "PASSWORD", None, "per-broker"),
    ("transaction.max.timeout.ms", "INT", "900000", "read-only"),
    ("unclean.leader.election.enable", "BOOLEAN", "false", "cluster-wide"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "default", "update"), RECORDED)
def test_rows_carry_kafkas_facts(name: str, kind: str, default: str | None, update: str) -> None:
    row = BROKER_SETTINGS[name]
    assert (row.type.name, row.default_text, row.update.value) == (kind, default, update)


def test_the_largest_double_is_written_as_java_writes_it() -> None:
    row = BROKER_SETTINGS["log.cleaner.io.max.bytes.per.second"]
    assert row.kafka_default == sys.float_info.max
    assert replace(row, default=sys.float_info.max).default_text == "1.7976931348623157E308"


def test_what_a_running_broker_changes_is_known_to_be_changeable() -> None:
    cannot_rebind = {"listeners", "listener.security.protocol.map", "durability"}
    assert all(BROKER_SETTINGS[name].update is UpdateMode.READ_ONLY for name in cannot_rebind)
    # Kafka's table of dynamic settings has 102 names, two of which Tidelog reads at start only.
    dynamic = {row.name for row in BROKER_SETTINGS.values() if row.update is not UpdateMode.READ_ONLY}
    assert len(dynamic - OURS) == 102 - 2


def test_rules_about_access_are_never_silently_dropped() -> None:
    for name in (
        "authorizer.class.name",
        "create.topic.policy.class.name",
        "remote.log.storage.system.enable",
    ):
        assert BROKER_SETTINGS[name].effect is Effect.REFUSED
    assert all(row.sensitive == (row.type is ConfigType.PASSWORD) for row in EVERY)


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("listener.name.internal.ssl.keystore.location", "ssl.keystore.location"),
        ("listener.name.a.scram-sha-256.sasl.jaas.config", "sasl.jaas.config"),
        ("listener.name.a.no.such", None),
        ("log.dirs", None),
    ],
)
def test_a_setting_for_one_listener_is_traced_to_its_row(name: str, base: str | None) -> None:
    assert listener_base(name) == base
    assert (find(name) is not None) == (base is not None or name in BROKER_SETTINGS)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (0.0, "0.0"), (1.0, "1.0"), (1e7, "1.0E7"), (12345678.9, "1.23456789E7"), (9999999.0, "9999999.0"),
     (0.001, "0.001"), (0.0001, "1.0E-4"), (0.00012, "1.2E-4"), (-2.5e-9, "-2.5E-9"), (1e22, "1.0E22")],
)  # fmt: skip
def test_doubles_look_as_in_java(value: float, text: str) -> None:
    assert format_double(value) == text


def test_the_package_touches_no_clock_no_system_and_nothing_heavy() -> None:
    forbidden = {"asyncio", "os", "random", "socket", "threading", "time"}
    for path in Path(tidelog.config.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not forbidden & {name.partition(".")[0] for name in names}, path
    heavy = "asyncio difflib numba numpy pyarrow rich socket tidelog.storage typer"
    code = f"import sys, tidelog.config, tidelog.config.alter; print([m for m in '{heavy}'.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
