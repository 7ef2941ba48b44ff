"""Broker settings in the forms that the parts of a broker take."""

from __future__ import annotations

import base64
import uuid

from tidelog.broker.listener import ConnectionLimits
from tidelog.client.addresses import Address, parse_address
from tidelog.cluster.lifecycle import LifecycleTimings
from tidelog.cluster.node import NodeSettings
from tidelog.cluster.snapshots import SnapshotLimits
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.result import ControllerSettings
from tidelog.controller.service_ports import ControllerTimings
from tidelog.coordinator.group.settings import GroupSettings, MigrationPolicy
from tidelog.quorum.values import QuorumSettings, Voters
from tidelog.replication.fetcher import FetcherSettings
from tidelog.storage.log_manager import LogManager


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


def voter_addresses(config: BrokerConfig) -> dict[int, Address]:
    """Where the controllers of a cluster are. Empty for a node alone, which talks to nobody."""
    voters = {}
    for entry in config.list("controller.quorum.voters"):
        voter, _, address = entry.partition("@")
        voters[int(voter)] = parse_address(address)
    return voters


def is_alone(config: BrokerConfig) -> bool:
    """The only controller there is, whose only broker may be itself."""
    return voter_addresses(config).keys() <= {config.node_id} and "controller" in config.list("process.roles")


def cluster_id(config: BrokerConfig) -> str | None:
    """Of a cluster that begins: nodes that are given the same voters agree on its id without a word. A node alone draws one. Directories that have one keep it."""
    if len(voter_addresses(config)) < 2:
        return None
    named = ",".join(sorted(config.list("controller.quorum.voters")))
    return base64.urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_URL, named).bytes).decode().rstrip("=")


def node_settings(config: BrokerConfig, logs: LogManager) -> NodeSettings:
    return NodeSettings(
        quorum=_quorum_settings(config, logs),
        cluster_id=logs.cluster_id,
        is_broker="broker" in config.list("process.roles"),
        controller=ControllerTimings(
            session_timeout_s=config.int("broker.session.timeout.ms") / 1000,
            balance_interval_s=config.int("leader.imbalance.check.interval.seconds")
            if config.bool("auto.leader.rebalance.enable")
            else None,
        ),
        lifecycle=LifecycleTimings(
            heartbeat_interval_s=config.int("broker.heartbeat.interval.ms") / 1000,
        ),
        fetcher=FetcherSettings(
            wait_max_ms=config.int("replica.fetch.wait.max.ms"),
            min_bytes=config.int("replica.fetch.min.bytes"),
            partition_bytes_max=config.int("replica.fetch.max.bytes"),
            response_bytes_max=config.int("replica.fetch.response.max.bytes"),
            backoff_ms=config.int("replica.fetch.backoff.ms"),
            timeout_ms=config.int("replica.socket.timeout.ms"),
        ),
        snapshots=SnapshotLimits(
            config.int("metadata.log.max.record.bytes.between.snapshots"),
            config.int("metadata.log.max.snapshot.interval.ms"),
        ),
        lag_seconds_max=config.int("replica.lag.time.max.ms") / 1000,
        min_insync_replicas=config.int("min.insync.replicas"),
    )


def _quorum_settings(config: BrokerConfig, logs: LogManager) -> QuorumSettings:
    def seconds(name: str) -> float:
        return config.int(f"controller.quorum.{name}.ms") / 1000

    return QuorumSettings(
        node_id=config.node_id,
        voters=Voters.of(voter_addresses(config) or [config.node_id]),
        cluster_id=logs.cluster_id,
        election_timeout_s=seconds("election.timeout"),
        election_backoff_max_s=seconds("election.backoff.max"),
        fetch_timeout_s=seconds("fetch.timeout"),
        request_timeout_s=seconds("request.timeout"),
        retry_backoff_s=seconds("retry.backoff"),
        fetch_max_bytes=config.int("controller.quorum.fetch.max.bytes"),
        fetch_snapshot_max_bytes=config.int("controller.quorum.fetch.snapshot.max.bytes"),
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
