"""Broker settings in the forms that the parts of a broker take."""

from __future__ import annotations

from tidelog.broker.listener import ConnectionLimits
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.result import ControllerSettings
from tidelog.coordinator.group.settings import GroupSettings, MigrationPolicy


def connection_limits(config: BrokerConfig) -> ConnectionLimits:
    overrides = {}
    for entry in filter(None, config.str("max.connections.per.ip.overrides").split(",")):
        host, _, count = entry.rpartition(":")
        overrides[host.strip()] = int(count)
    return ConnectionLimits(
        max_frame_bytes=config.int("socket.request.max.bytes"),
        max_connections=config.int("max.connections"),
        max_connections_per_ip=config.int("max.connections.per.ip"),
        per_ip_overrides=overrides,
        max_idle_ms=config.int("connections.max.idle.ms"),
        max_held_bytes=config.int("connections.max.held.bytes"),
        send_buffer_bytes=config.int("socket.send.buffer.bytes"),
        receive_buffer_bytes=config.int("socket.receive.buffer.bytes"),
        backlog=config.int("socket.listen.backlog.size"),
    )


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    return ControllerSettings(
        num_partitions=config.int("num.partitions"),
        default_replication_factor=config.int("default.replication.factor"),
        min_insync_replicas=config.int("min.insync.replicas"),
        unclean_leader_election_enable=config.bool("unclean.leader.election.enable"),
        delete_topic_enable=config.bool("delete.topic.enable"),
    )


def group_settings(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
        join_gather_ms=config.int("group.join.gather.ms"),
        min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
        max_size=config.int("group.max.size"),
        assignors=tuple(_assignor(name) for name in config.list("group.consumer.assignors")),
        consumer_heartbeat_interval_ms=config.int("group.consumer.heartbeat.interval.ms"),
        consumer_session_timeout_ms=config.int("group.consumer.session.timeout.ms"),
        consumer_assignment_interval_ms=config.int("group.consumer.assignment.interval.ms"),
        consumer_max_size=config.int("group.consumer.max.size"),
        consumer_migration_policy=MigrationPolicy(config.str("group.consumer.migration.policy").lower()),
        consumer_regex_refresh_interval_ms=config.int("group.consumer.regex.refresh.interval.ms"),
        offset_metadata_max_bytes=config.int("offset.metadata.max.bytes"),
        offsets_retention_ms=config.int("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=config.int("offsets.retention.check.interval.ms"),
    )


def _assignor(name: str) -> str:
    """Kafka's class names stand for the two that it has."""
    return name.rpartition(".")[2].removesuffix("Assignor").lower()
