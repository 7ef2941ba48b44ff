"""What a client believes of a cluster: older news never replaces newer."""

from __future__ import annotations

from tidelog.client.metadata import ClusterMetadata, TopicPartition
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TP = TopicPartition("orders", 0)


def answer(leader: int, epoch: int, *, topic_id: bytes = b"\1" * 16) -> MetadataResponse:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=node, host="h", port=9092 + node) for node in (0, 1)],
        topics=[MetadataResponseTopic(name="orders", topic_id=topic_id, partitions=[partition])],
    )


def test_a_leader_of_an_older_epoch_is_no_news() -> None:
    metadata = ClusterMetadata().updated_by(answer(1, 5), everything=False)
    late = metadata.doubting(["orders"]).updated_by(answer(0, 4), everything=False)
    found = late.leader_of(TP)
    assert found is not None and (found.leader, found.leader_epoch) == (1, 5)
    newer = late.updated_by(answer(0, 6), everything=False).leader_of(TP)
    assert newer is not None and newer.leader == 0


def test_a_topic_that_was_made_again_begins_anew() -> None:
    metadata = ClusterMetadata().updated_by(answer(1, 5), everything=False)
    again = metadata.updated_by(answer(0, 0, topic_id=b"\2" * 16), everything=False).leader_of(TP)
    assert again is not None and (again.leader, again.leader_epoch) == (0, 0)


def test_brokers_that_know_no_epochs_are_believed() -> None:
    metadata = ClusterMetadata().updated_by(answer(1, 5), everything=False)
    found = metadata.updated_by(answer(0, -1), everything=False).leader_of(TP)
    assert found is not None and found.leader == 0


def test_who_is_doubted_leads_nothing_until_there_is_an_answer() -> None:
    metadata = ClusterMetadata().updated_by(answer(1, 5), everything=False).doubting(["orders"])
    assert metadata.leader_of(TP) is None
    assert metadata.updated_by(answer(1, 5), everything=False).leader_of(TP) is not None
    assert metadata.updated_by(answer(1, 5), everything=True).leader_of(TP) is not None
