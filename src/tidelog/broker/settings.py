"""Broker settings in the forms that the parts of a broker take."""

from __future__ import annotations

from tidelog.broker.listener import ConnectionLimits
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.result import ControllerSettings


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
