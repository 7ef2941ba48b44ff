"""What this broker serves: the dispatch table, and so the answer to ApiVersions.

An API stands here when its semantics are there and tested, in the version range of a Kafka 4.3 broker (D8). Nothing is
listed in parts: kafka-python, for one, infers the broker's release from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.broker.api import (
    alter_configs,
    api_versions,
    between_nodes,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    envelope,
    explain_group,
    explain_replicas,
    explain_topic,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    unregister_broker,
    update_features,
)
from tidelog.broker.dispatch import Api
from tidelog.wire.api import ApiKey

_TABLE: Final = (
    Api(ApiKey.PRODUCE, 0, 13, frame_handler=produce.handle_frame, lowest_served=3),
    Api(ApiKey.FETCH, 4, 18, frame_handler=fetch.handle_frame),
    Api(ApiKey.LIST_OFFSETS, 1, 11, list_offsets.handle),
    Api(ApiKey.METADATA, 0, 13, metadata.handle),
    Api(ApiKey.OFFSET_COMMIT, 2, 10, offset_commit.handle),
    Api(ApiKey.OFFSET_FETCH, 1, 10, offset_fetch.handle),
    Api(ApiKey.FIND_COORDINATOR, 0, 6, find_coordinator.handle),
    Api(ApiKey.JOIN_GROUP, 0, 9, join_group.handle),
    Api(ApiKey.HEARTBEAT, 0, 4, heartbeat.handle),
    Api(ApiKey.LEAVE_GROUP, 0, 5, leave_group.handle),
    Api(ApiKey.SYNC_GROUP, 0, 5, sync_group.handle),
    Api(ApiKey.DESCRIBE_GROUPS, 0, 6, describe_groups.handle),
    Api(ApiKey.LIST_GROUPS, 0, 5, list_groups.handle),
    Api(ApiKey.API_VERSIONS, 0, 4, api_versions.handle),
    Api(ApiKey.CREATE_TOPICS, 2, 7, create_topics.handle, is_forwarded=True),
    Api(ApiKey.DELETE_TOPICS, 1, 6, delete_topics.handle, is_forwarded=True),
    Api(ApiKey.DELETE_RECORDS, 0, 2, delete_records.handle),
    Api(ApiKey.INIT_PRODUCER_ID, 0, 5, init_producer_id.handle),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, offset_for_leader_epoch.handle),
    Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, describe_configs.handle),
    Api(ApiKey.ALTER_CONFIGS, 0, 2, alter_configs.handle, is_forwarded=True),
    Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, describe_log_dirs.handle),
    Api(ApiKey.CREATE_PARTITIONS, 0, 3, create_partitions.handle, is_forwarded=True),
    Api(ApiKey.DELETE_GROUPS, 0, 2, delete_groups.handle),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, incremental_alter_configs.handle, is_forwarded=True),
    Api(ApiKey.OFFSET_DELETE, 0, 0, offset_delete.handle),
    Api(ApiKey.ELECT_LEADERS, 0, 2, elect_leaders.handle, is_forwarded=True),
    Api(ApiKey.DESCRIBE_QUORUM, 0, 2, describe_quorum.handle, is_forwarded=True),
    Api(ApiKey.UPDATE_FEATURES, 0, 2, update_features.handle, is_forwarded=True),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, describe_cluster.at_broker),
    Api(ApiKey.UNREGISTER_BROKER, 0, 0, unregister_broker.handle, is_forwarded=True),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, consumer_group_heartbeat.handle),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, consumer_group_describe.handle),
    Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, list_config_resources.handle),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, describe_topic_partitions.handle),
    Api(ApiKey.EXPLAIN_GROUP, 0, 0, explain_group.handle, is_listed=False),
    Api(ApiKey.EXPLAIN_TOPIC, 0, 0, explain_topic.handle, is_listed=False),
    Api(ApiKey.EXPLAIN_REPLICAS, 0, 0, explain_replicas.handle, is_listed=False),
)

APIS: Final[Mapping[int, Api]] = {int(api.key): api for api in _TABLE}

_BETWEEN_NODES: Final = (
    Api(ApiKey.FETCH, 4, 18, between_nodes.to_quorum),
    Api(ApiKey.VOTE, 0, 2, between_nodes.to_quorum),
    Api(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, between_nodes.to_quorum),
    Api(ApiKey.END_QUORUM_EPOCH, 0, 1, between_nodes.to_quorum),
    Api(ApiKey.FETCH_SNAPSHOT, 0, 1, between_nodes.to_quorum),
    Api(ApiKey.ALTER_PARTITION, 2, 3, between_nodes.to_controller),
    Api(ApiKey.ENVELOPE, 0, 0, envelope.handle),
    Api(ApiKey.BROKER_REGISTRATION, 0, 4, between_nodes.to_controller),
    Api(ApiKey.BROKER_HEARTBEAT, 0, 1, between_nodes.to_controller),
    Api(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, between_nodes.to_controller),
    Api(ApiKey.CONTROLLER_REGISTRATION, 0, 0, between_nodes.to_controller),
    Api(ApiKey.API_VERSIONS, 0, 4, api_versions.handle),
    Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, describe_cluster.at_controller),
    *(api for api in _TABLE if api.is_forwarded),
)
CONTROLLER_APIS: Final[Mapping[int, Api]] = {int(api.key): api for api in _BETWEEN_NODES}
"""What is served at the listener of controllers: to other nodes, and to tools that ask a controller itself."""
