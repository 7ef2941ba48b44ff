"""Each advertised API in each advertised version: the request is understood, and the answer says something sensible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.broker.conftest import Topic, Wire, batch, code
from tidelog.broker.apis import APIS
from tidelog.wire.api import TIDELOG_APIS, ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages import (
    alter_configs,
    api_versions,
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
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    sync_group,
    unregister_broker,
    update_features,
)
from tidelog.wire.tidelog_api import (
    ExplainGroupRequest,
    ExplainReplicasRequest,
    ExplainReplicasTopic,
    ExplainTopicRequest,
)
from tidelog.wire.types import ZERO_UUID

TOPIC_RESOURCE = 2
SERVED = [
    (key, version)
    for key, api in APIS.items()
    for version in range(max(api.min_version, api.lowest_served), api.max_version + 1)
]


def check_produce(wire: Wire, topic: Topic, version: int) -> None:
    answer = wire.produce(topic, batch(b"more"), version=version)
    assert (answer.error_code, answer.base_offset) == (0, 1)
    assert answer.log_append_time_ms == -1
    assert answer.log_start_offset == (0 if version >= 5 else -1)


def check_fetch(wire: Wire, topic: Topic, version: int) -> None:
    answer = wire.fetch(topic, 0, version=version)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 1, 1)
    assert bytes(answer.records)[8:] == _stored(batch(b"first"))[8:]


def _stored(records: bytes) -> bytes:
    """The broker writes offset and leader epoch, both 0 here; nothing else changes."""
    return bytes(8) + records[8:12] + bytes(4) + records[16:]


def check_list_offsets(wire: Wire, topic: Topic, version: int) -> None:
    answer = wire.offset_at(topic, -1, version=version)
    assert (answer.error_code, answer.offset) == (0, 1)
    assert answer.leader_epoch == (0 if version >= 4 else -1)


def check_metadata(wire: Wire, topic: Topic, version: int) -> None:
    request = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=topic.name)], allow_auto_topic_creation=True
    )
    response = wire.ask(request, version)
    (broker,) = response.brokers
    assert (broker.host, broker.port) == ("127.0.0.1", wire.port)
    (found,) = response.topics
    assert (found.error_code, found.name, len(found.partitions)) == (0, topic.name, 1)
    assert found.partitions[0].leader_id == broker.node_id
    if version >= 1:
        assert response.controller_id == broker.node_id
    if version >= 2:
        assert response.cluster_id
    if version >= 10:
        assert found.topic_id == topic.id


def check_find_coordinator(wire: Wire, topic: Topic, version: int) -> None:
    response = wire.ask(find_coordinator.FindCoordinatorRequest(key="g", coordinator_keys=["g"]), version)
    answer = response if version < 4 else response.coordinators[0]
    assert (answer.error_code, answer.host, answer.port) == (0, "127.0.0.1", wire.port)
    transactional = find_coordinator.FindCoordinatorRequest(key="g", key_type=1, coordinator_keys=["g"])
    if version >= 1:
        response = wire.ask(transactional, version)
        answer = response if version < 4 else response.coordinators[0]
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (15, -1, "", -1)


def simple_commit(wire: Wire, topic: Topic, offset: int) -> str:
    """A group without members that has committed; its name."""
    group = f"group-of-{topic.name}"
    check_find_coordinator(wire, topic, 2)
    committed = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        topics=[
            offset_commit.OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=[committed])
        ],
    )
    while (code := wire.ask(request).topics[0].partitions[0].error_code) in (
        14,
        16,
    ):  # its shard is being loaded
        pass
    assert code == 0
    return group


def check_offset_commit(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    committed = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        topics=[
            offset_commit.OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=[committed])
        ],
    )
    (found,) = wire.ask(request, version).topics
    assert (found.name, found.topic_id) == ((topic.name, ZERO_UUID) if version < 10 else ("", topic.id))
    assert [(each.partition_index, each.error_code) for each in found.partitions] == [(0, 0)]


def check_offset_fetch(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 7)
    request = offset_fetch.OffsetFetchRequest(
        group_id=group,
        topics=[offset_fetch.OffsetFetchRequestTopic(name=topic.name, partition_indexes=[0, 1])],
        groups=[
            offset_fetch.OffsetFetchRequestGroup(
                group_id=group,
                topics=[
                    offset_fetch.OffsetFetchRequestTopics(
                        name=topic.name, topic_id=topic.id, partition_indexes=[0, 1]
                    )
                ],
            )
        ],
    )
    response = wire.ask(request, version)
    answer = response if version < 8 else response.groups[0]
    assert answer.error_code == 0
    found = {each.partition_index: each.committed_offset for each in answer.topics[0].partitions}
    assert found == {0: 7, 1: -1}


def check_offset_delete(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 7)
    asked = offset_delete.OffsetDeleteRequestTopic(
        name=topic.name, partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=0)]
    )
    response = wire.ask(offset_delete.OffsetDeleteRequest(group_id=group, topics=[asked]), version)
    assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)


def check_join_group(wire: Wire, topic: Topic, version: int) -> None:
    """Nobody has this member id; who joins, and how, is in `test_api_groups_classic.py`."""
    group = simple_commit(wire, topic, 0)
    request = join_group.JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="nobody",
        protocol_type="consumer", protocols=[join_group.JoinGroupRequestProtocol(name="range")],
    )  # fmt: skip
    assert code(wire.ask(request, version)) == "UNKNOWN_MEMBER_ID"


def check_sync_group(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    request = sync_group.SyncGroupRequest(
        group_id=group, generation_id=1, member_id="nobody", protocol_type="consumer", protocol_name="range"
    )
    assert code(wire.ask(request, version)) == "UNKNOWN_MEMBER_ID"


def check_heartbeat(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    request = heartbeat.HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
    assert code(wire.ask(request, version)) == "UNKNOWN_MEMBER_ID"


def check_leave_group(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    request = leave_group.LeaveGroupRequest(
        group_id=group, member_id="nobody", members=[leave_group.MemberIdentity(member_id="nobody")]
    )
    response = wire.ask(request, version)
    assert code(response if version < 3 else response.members[0]) == "UNKNOWN_MEMBER_ID"


def check_describe_groups(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    (found,) = wire.ask(describe_groups.DescribeGroupsRequest(groups=[group]), version).groups
    assert (found.error_code, found.group_id, found.group_state, found.members) == (0, group, "Empty", [])


def check_list_groups(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    response = wire.ask(list_groups.ListGroupsRequest(), version)
    assert response.error_code == 0
    (found,) = (each for each in response.groups if each.group_id == group)
    assert found.group_state == ("Empty" if version >= 4 else "")


def check_delete_groups(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    (result,) = wire.ask(delete_groups.DeleteGroupsRequest(groups_names=[group]), version).results
    assert (result.error_code, result.group_id) == (0, group)


def check_consumer_group_heartbeat(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id=group, member_id="nobody", member_epoch=7
    )
    assert code(wire.ask(request, version)) in ("UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND")


def check_consumer_group_describe(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    request = consumer_group_describe.ConsumerGroupDescribeRequest(group_ids=[group])
    (found,) = wire.ask(request, version).groups
    assert code(found) == "GROUP_ID_NOT_FOUND"


def check_explain_group(wire: Wire, topic: Topic, version: int) -> None:
    group = simple_commit(wire, topic, 0)
    response = wire.ask(ExplainGroupRequest(group_id=group), version)
    assert (response.error_code, response.state, response.entries) == (0, "Empty", [])


def check_explain_topic(wire: Wire, topic: Topic, version: int) -> None:
    response = wire.ask(ExplainTopicRequest(topic=topic.name, partition=0), version)
    assert (response.error_code, response.cleanup_policy, response.log_end_offset) == (0, "delete", 1)
    (segment,) = response.segments
    assert (segment.base_offset, segment.end_offset, segment.fate) == (0, 1, "active")
    missing = wire.ask(ExplainTopicRequest(topic="no such topic", partition=0), version)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def check_explain_replicas(wire: Wire, topic: Topic, version: int) -> None:
    asked = ExplainReplicasTopic(topic=topic.name, partitions=[0, 7])
    response = wire.ask(ExplainReplicasRequest(topics=[asked]), version)
    (found,) = response.partitions
    assert (response.error_code, found.role, found.log_end_offset, found.absent) == (0, "leader", 1, [])
    (replica,) = found.replicas
    assert (replica.broker_id, replica.in_sync) == (response.broker_id, True)
    assert [(each.broker_id, each.state) for each in response.brokers] == [(response.broker_id, "active")]
    assert topic.name in {each.topic for each in wire.ask(ExplainReplicasRequest(), version).partitions}


def check_api_versions(wire: Wire, topic: Topic, version: int) -> None:
    request = api_versions.ApiVersionsRequest(client_software_name="t", client_software_version="1")
    response = wire.ask(request, version)
    assert response.error_code == 0
    table = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    listed = {int(api.key): (api.min_version, api.max_version) for api in APIS.values() if api.is_listed}
    assert table == listed


def check_create_topics(wire: Wire, topic: Topic, version: int) -> None:
    asked = create_topics.CreatableTopic(name=topic.name + "-new", num_partitions=2, replication_factor=1)
    (result,) = wire.ask(create_topics.CreateTopicsRequest(topics=[asked], timeout_ms=9000), version).topics
    assert (result.error_code, result.error_message) == (0, None)
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (2, 1)
        assert {"retention.ms", "cleanup.policy"} <= {config.name for config in result.configs}
    assert wire.metadata(topic.name + "-new").topics[0].error_code == 0


def check_delete_topics(wire: Wire, topic: Topic, version: int) -> None:
    request = delete_topics.DeleteTopicsRequest(
        topics=[delete_topics.DeleteTopicState(name=topic.name)], topic_names=[topic.name], timeout_ms=9000
    )
    (result,) = wire.ask(request, version).responses
    assert (result.error_code, result.name) == (0, topic.name)
    assert wire.metadata(topic.name).topics[0].error_code == 3


def check_delete_records(wire: Wire, topic: Topic, version: int) -> None:
    asked = delete_records.DeleteRecordsPartition(partition_index=0, offset=-1)
    request = delete_records.DeleteRecordsRequest(
        topics=[delete_records.DeleteRecordsTopic(name=topic.name, partitions=[asked])], timeout_ms=9000
    )
    result = wire.ask(request, version).topics[0].partitions[0]
    assert (result.error_code, result.low_watermark) == (0, 1)
    assert wire.offset_at(topic, -2).offset == 1


def check_init_producer_id(wire: Wire, topic: Topic, version: int) -> None:
    request = init_producer_id.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    first, second = wire.ask(request, version), wire.ask(request, version)
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert second.producer_id > first.producer_id >= 0


def check_offset_for_leader_epoch(wire: Wire, topic: Topic, version: int) -> None:
    asked = offset_for_leader_epoch.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    request = offset_for_leader_epoch.OffsetForLeaderEpochRequest(
        topics=[offset_for_leader_epoch.OffsetForLeaderTopic(topic=topic.name, partitions=[asked])]
    )
    answer = wire.ask(request, version).topics[0].partitions[0]
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 1)


def check_describe_configs(wire: Wire, topic: Topic, version: int) -> None:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=topic.name, configuration_keys=["retention.ms"]
    )
    request = describe_configs.DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = wire.ask(request, version).results
    assert (result.error_code, result.resource_name) == (0, topic.name)
    (config,) = result.configs
    assert (config.name, config.value, config.config_source) == ("retention.ms", "604800000", 5)
    if version >= 3:
        assert config.config_type == 5 and config.documentation


def check_alter_configs(wire: Wire, topic: Topic, version: int) -> None:
    resource = alter_configs.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=topic.name,
        configs=[alter_configs.AlterableConfig(name="retention.ms", value="777")],
    )
    (result,) = wire.ask(alter_configs.AlterConfigsRequest(resources=[resource]), version).responses
    assert (result.error_code, result.error_message) == (0, None)


def check_incremental_alter_configs(wire: Wire, topic: Topic, version: int) -> None:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=TOPIC_RESOURCE,
        resource_name=topic.name,
        configs=[incremental_alter_configs.AlterableConfig(name="retention.ms", value="777")],
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = wire.ask(request, version).responses
    assert (result.error_code, result.error_message) == (0, None)


def check_describe_log_dirs(wire: Wire, topic: Topic, version: int) -> None:
    asked = describe_log_dirs.DescribableLogDirTopic(topic=topic.name, partitions=[0])
    response = wire.ask(describe_log_dirs.DescribeLogDirsRequest(topics=[asked]), version)
    (result,) = response.results
    assert (response.error_code, result.error_code) == (0, 0)
    (found,) = result.topics
    assert [(p.partition_index, p.partition_size) for p in found.partitions] == [(0, len(batch(b"first")))]
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes


def check_create_partitions(wire: Wire, topic: Topic, version: int) -> None:
    asked = create_partitions.CreatePartitionsTopic(name=topic.name, count=3, assignments=None)
    request = create_partitions.CreatePartitionsRequest(topics=[asked], timeout_ms=9000)
    (result,) = wire.ask(request, version).results
    assert (result.error_code, result.name) == (0, topic.name)
    assert len(wire.metadata(topic.name).topics[0].partitions) == 3


def check_describe_cluster(wire: Wire, topic: Topic, version: int) -> None:
    response = wire.ask(describe_cluster.DescribeClusterRequest(), version)
    (broker,) = response.brokers
    assert (response.error_code, broker.host, broker.port) == (0, "127.0.0.1", wire.port)
    assert response.cluster_id == wire.metadata().cluster_id
    assert response.controller_id == broker.broker_id


def check_list_config_resources(wire: Wire, topic: Topic, version: int) -> None:
    response = wire.ask(list_config_resources.ListConfigResourcesRequest(), version)
    named = {(resource.resource_type, resource.resource_name) for resource in response.config_resources}
    assert response.error_code == 0
    assert ((TOPIC_RESOURCE, topic.name) in named) == (version >= 1)


def check_describe_topic_partitions(wire: Wire, topic: Topic, version: int) -> None:
    request = describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[describe_topic_partitions.TopicRequest(name=topic.name)]
    )
    response = wire.ask(request, version)
    (found,) = response.topics
    assert (found.name, found.topic_id, response.next_cursor) == (topic.name, topic.id, None)
    assert [partition.partition_index for partition in found.partitions] == [0]


def check_elect_leaders(wire: Wire, topic: Topic, version: int) -> None:
    asked = elect_leaders.TopicPartitions(topic=topic.name, partitions=[0, 7])
    request = elect_leaders.ElectLeadersRequest(topic_partitions=[asked], timeout_ms=9000)
    response = wire.ask(request, version)
    (result,) = response.replica_election_results
    codes = {each.partition_id: ErrorCode(each.error_code).name for each in result.partition_result}
    assert response.error_code == 0
    assert codes == {0: "ELECTION_NOT_NEEDED", 7: "UNKNOWN_TOPIC_OR_PARTITION"}


def check_describe_quorum(wire: Wire, topic: Topic, version: int) -> None:
    asked = describe_quorum.RequestTopicData(
        topic_name="__cluster_metadata", partitions=[describe_quorum.RequestPartitionData(partition_index=0)]
    )
    response = wire.ask(describe_quorum.DescribeQuorumRequest(topics=[asked]), version)
    (found,) = response.topics[0].partitions
    (voter,) = found.current_voters
    assert (response.error_code, found.error_code, found.observers) == (0, 0, [])
    assert voter.replica_id == found.leader_id == wire.metadata().controller_id
    assert found.leader_epoch > 0
    assert voter.log_end_offset >= found.high_watermark > 0


def check_update_features(wire: Wire, topic: Topic, version: int) -> None:
    name = f"no-feature-{version}"
    asked = update_features.FeatureUpdateKey(feature=name, max_version_level=1)
    response = wire.ask(update_features.UpdateFeaturesRequest(feature_updates=[asked]), version)
    code = response.error_code or response.results[0].error_code
    assert ErrorCode(code).name == "INVALID_UPDATE_VERSION"


def check_unregister_broker(wire: Wire, topic: Topic, version: int) -> None:
    response = wire.ask(unregister_broker.UnregisterBrokerRequest(broker_id=77), version)
    assert ErrorCode(response.error_code).name == "BROKER_ID_NOT_REGISTERED"
    own = wire.metadata().brokers[0].node_id
    response = wire.ask(unregister_broker.UnregisterBrokerRequest(broker_id=own), version)
    assert ErrorCode(response.error_code).name == "INVALID_REQUEST"
    assert "running" in response.error_message


CHECKS: dict[int, Callable[[Wire, Topic, int], None]] = {
    int(ApiKey[name.removeprefix("check_").upper()]): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


def test_there_is_a_check_for_every_api() -> None:
    assert CHECKS.keys() == APIS.keys()


@pytest.mark.parametrize(("key", "version"), SERVED, ids=[f"{ApiKey(k).name}-v{v}" for k, v in SERVED])
def test_version(wire: Wire, name: str, key: int, version: int, foreign: bool) -> None:
    if foreign and key in (ApiKey.API_VERSIONS, ApiKey.FIND_COORDINATOR, *TIDELOG_APIS):
        pytest.skip("another broker has other APIs, and coordinators")
    topic = wire.create(name)
    assert wire.produce(topic, batch(b"first")).base_offset == 0
    CHECKS[key](wire, topic, version)


def test_the_table_is_a_subset_of_one_kafka_release(wire: Wire) -> None:
    """kafka-python infers the release from it, librdkafka its features. The ranges are those of Kafka 4.3."""
    kafka = {0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5),
             14: (0, 5), 15: (0, 6), 16: (0, 5), 42: (0, 2), 47: (0, 0), 68: (0, 1), 69: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
             22: (0, 5), 23: (2, 4), 32: (1, 4), 33: (0, 2), 35: (1, 5), 37: (0, 3), 44: (0, 1), 60: (0, 2), 74: (0, 1),
             75: (0, 0)}  # fmt: skip
    response: Any = wire.ask(api_versions.ApiVersionsRequest(), 0)
    told = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert {key: told.get(key) for key in kafka} == kafka
