"""OffsetCommit, OffsetFetch and OffsetDelete: who may, and which topics there are; what is committed is in `offsets`.

Owns the translation between topic ids and names (versions 10), and the errors of partitions that do not exist.
"""

from __future__ import annotations

from typing import Final

from tidelog.coordinator.group.classic.groups import ClassicGroups
from tidelog.coordinator.group.consumer.groups import ConsumerGroups
from tidelog.coordinator.group.offsets import Offsets
from tidelog.coordinator.group.world import Client, Topics
from tidelog.coordinator.outcome import Now, Outcome, Waiter, answered
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.wire.messages.offset_fetch import OffsetFetchRequestGroup

FIRST_COMMIT_BY_ID: Final = 10
FIRST_FETCH_BY_ID: Final = 10


class OffsetRequests:
    __slots__ = ("_classic", "_consumer", "_offsets", "_topics")

    def __init__(
        self,
        classic: ClassicGroups,
        consumer: ConsumerGroups,
        offsets: Offsets,
        topics: Topics,
    ) -> None:
        self._classic = classic
        self._consumer = consumer
        self._offsets = offsets
        self._topics = topics

    # ---- commit

    def commit(self, request: OffsetCommitRequest, client: Client, waiter: Waiter, now: Now) -> Outcome:
        group_id = request.group_id
        member_id, generation = request.member_id, request.generation_id_or_member_epoch
        if group_id in self._consumer:
            check = self._consumer.check_commit(
                group_id,
                member_id,
                generation,
                now,
                instance_id=request.group_instance_id,
                version=client.version,
            )
        else:
            check = None
            self._classic.check_commit(
                group_id, member_id, request.group_instance_id, generation, False, now, version=client.version
            )
        by_id = client.version >= FIRST_COMMIT_BY_ID
        known, refused = self._split(request, by_id=by_id)
        accepted = OffsetCommitRequest(
            group_id, generation, member_id, request.retention_time_ms, request.group_instance_id, known
        )
        records, response = self._offsets.commit(group_id, accepted, now, check)
        by_topic = {each.topic_id if by_id else each.name: each for each in response.topics}
        for each in refused:
            known_too = by_topic.get(each.topic_id if by_id else each.name)
            if known_too is None:
                response.topics.append(each)
            else:
                known_too.partitions += (
                    each.partitions
                )  # one entry a topic: some clients keep the last one only
        return Outcome(records=records).answer(waiter, response)

    def _split(
        self, request: OffsetCommitRequest, *, by_id: bool
    ) -> tuple[list[OffsetCommitRequestTopic], list[OffsetCommitResponseTopic]]:
        """Partitions that there are, and answers for the others. Commits are stored with the topic's id."""
        topics = self._topics
        known: list[OffsetCommitRequestTopic] = []
        refused: list[OffsetCommitResponseTopic] = []
        missing = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in request.topics:
            name = (topics.name_of(topic.topic_id) or "") if by_id else topic.name
            count = topics.partitions(name)
            code = missing if count is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            there = [each for each in topic.partitions if 0 <= each.partition_index < (count or 0)]
            absent = [each for each in topic.partitions if not 0 <= each.partition_index < (count or 0)]
            if there:
                topic_id = topic.topic_id if by_id else topics.id_of(name) or topic.topic_id
                known.append(OffsetCommitRequestTopic(name, topic_id, there))
            if absent:
                answers = [OffsetCommitResponsePartition(each.partition_index, code) for each in absent]
                refused.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, answers))
        return known, refused

    # ---- fetch

    def fetch(
        self, request: OffsetFetchRequestGroup, require_stable: bool, client: Client, waiter: Waiter
    ) -> Outcome:
        if request.group_id in self._consumer:
            self._consumer.check_fetch(request.group_id, request.member_id, request.member_epoch)
        by_id = client.version >= FIRST_FETCH_BY_ID
        topics = self._topics
        for topic in request.topics or ():
            if by_id:
                topic.name = topics.name_of(topic.topic_id) or ""
            else:  # what was committed to an earlier topic of the name is none of this one's
                topic.topic_id = topics.id_of(topic.name) or topic.topic_id
        if request.topics is not None:
            return answered(waiter, self._offsets.fetch(request, require_stable=require_stable))
        found = self._offsets.fetch_all(request.group_id, topics.id_of, require_stable=require_stable)
        if by_id:
            found.topics = [each for each in found.topics if topics.id_of(each.name) is not None]
        return answered(waiter, found)

    # ---- delete

    def delete(self, request: OffsetDeleteRequest, waiter: Waiter) -> Outcome:
        group_id = request.group_id
        if not group_id:
            raise RequestError(ErrorCode.INVALID_GROUP_ID, "a group needs an id that is not empty")
        names = [topic.name for topic in request.topics]
        if group_id in self._consumer:
            subscribed = self._consumer.subscribed_topics(group_id)
        elif group_id in self._classic or not self._offsets.has_any(group_id):
            self._classic.check_delete_offsets(group_id)
            subscribed = frozenset(name for name in names if self._classic.is_subscribed(group_id, name))
        else:
            subscribed = frozenset()
        topics = self._topics
        known = OffsetDeleteRequest(group_id)
        refused: list[OffsetDeleteResponseTopic] = []
        for topic in request.topics:
            count = topics.partitions(topic.name) or 0
            there = [each for each in topic.partitions if 0 <= each.partition_index < count]
            absent = [each for each in topic.partitions if not 0 <= each.partition_index < count]
            if there:
                known.topics.append(OffsetDeleteRequestTopic(topic.name, there))
            if absent:
                answers = [
                    OffsetDeleteResponsePartition(each.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    for each in absent
                ]
                refused.append(OffsetDeleteResponseTopic(topic.name, answers))
        records, response = self._offsets.delete(group_id, known, subscribed)
        by_name = {each.name: each for each in response.topics}
        for refusal in refused:
            if refusal.name in by_name:
                by_name[refusal.name].partitions += refusal.partitions
            else:
                response.topics.append(refusal)
        return Outcome(records=records).answer(waiter, response)
