"""What the groups of one shard have committed: an offset for each group, topic and partition.

Owns committed offsets, and those that open transactions have staged (`offsets_pending`). An offset moves by an accepted commit and goes
by an accepted delete, by expiry or with its topic, in no other way (I35). Whether a member may commit or fetch is decided before anybody
comes here; and topics have their names here: whoever takes a request that names a topic by its id puts the name beside it, and a topic
that still has none is answered UNKNOWN_TOPIC_ID.

Handlers return records and change nothing; `replay_commit` and `replay_end_transaction` are the only ways in (I36).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, TypeAlias

from tidelog.coordinator.group.offsets_pending import PendingOffsets, Place
from tidelog.coordinator.group.offsets_values import (
    NO_EXPIRY,
    CommittedOffset,
    committed_offset,
    expire_timestamp,
    is_too_long,
    no_offset,
    of_topic,
    stored_value,
    told,
    tombstone,
)
from tidelog.coordinator.group.records import OffsetCommitKey, OffsetCommitValue
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.outcome import CoordinatorRecord, Now
from tidelog.records.batch import NO_PRODUCER_ID
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidelog.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from tidelog.wire.types import ZERO_UUID

PartitionCheck: TypeAlias = Callable[[str, bytes, int], None]
"""Topic, topic id and partition of a commit: raises the RequestError with which the whole commit is refused (KIP-1251)."""

_NEVER: Final = -1

_Partitions: TypeAlias = dict[int, CommittedOffset]


class Offsets:
    __slots__ = ("_committed", "_count", "_pending", "_settings")

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._committed: dict[str, dict[str, _Partitions]] = {}  # nothing in here is empty
        self._pending = PendingOffsets()
        self._count = 0

    @property
    def total(self) -> int:
        """How many offsets are committed, over all groups."""
        return self._count

    # ---- committing

    def commit(
        self, group_id: str, request: OffsetCommitRequest, now: Now, check: PartitionCheck | None = None
    ) -> tuple[list[CoordinatorRecord], OffsetCommitResponse]:
        """The records of an OffsetCommit whose sender may commit, and what it is told once they are written."""
        expires = expire_timestamp(now.wall_ms, request.retention_time_ms)
        records: list[CoordinatorRecord] = []
        topics: list[OffsetCommitResponseTopic] = []
        for topic in request.topics:
            answers: list[OffsetCommitResponsePartition] = []
            for partition in topic.partitions:
                code = self._commit_error(topic, partition)
                if code == ErrorCode.NONE:
                    if check is not None:
                        check(topic.name, topic.topic_id, partition.partition_index)
                    key = OffsetCommitKey(group_id, topic.name, partition.partition_index)
                    value = stored_value(topic.topic_id, partition, now.wall_ms, expires)
                    records.append(CoordinatorRecord(key, value))
                answers.append(OffsetCommitResponsePartition(partition.partition_index, code))
            topics.append(OffsetCommitResponseTopic(topic.name, topic.topic_id, answers))
        return records, OffsetCommitResponse(topics=topics)

    def _commit_error(
        self, topic: OffsetCommitRequestTopic, partition: OffsetCommitRequestPartition
    ) -> ErrorCode:
        if not topic.name:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if is_too_long(partition.committed_metadata, self._settings.offset_metadata_max_bytes):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    # ---- fetching

    def fetch(
        self, group: OffsetFetchRequestGroup, *, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """The partitions that are asked for, or all that the group has if the request names none (`topics` is None).

        With `require_stable`, partitions about which a transaction is open are answered UNSTABLE_OFFSET_COMMIT.
        """
        if group.topics is None:
            return self.fetch_all(group.group_id, require_stable=require_stable)
        committed = self._committed.get(group.group_id, {})
        topics: list[OffsetFetchResponseTopics] = []
        for topic in group.topics:
            found = committed.get(topic.name, {})
            answers: list[OffsetFetchResponsePartitions] = []
            for partition in topic.partition_indexes:
                if not topic.name:
                    answers.append(no_offset(partition, ErrorCode.UNKNOWN_TOPIC_ID))
                elif require_stable and self._pending.has(group.group_id, topic.name, partition):
                    answers.append(no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                else:
                    answers.append(told(partition, of_topic(found.get(partition), topic.topic_id)))
            topics.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, answers))
        return OffsetFetchResponseGroup(group.group_id, topics)

    def fetch_all(
        self,
        group_id: str,
        id_of: Callable[[str], bytes | None] = lambda _name: None,
        *,
        require_stable: bool = False,
    ) -> OffsetFetchResponseGroup:
        """All that the group has. `id_of` says which id a topic has now: what was committed to an earlier one of that name is not told."""
        topics: list[OffsetFetchResponseTopics] = []
        for topic, partitions in self._committed.get(group_id, {}).items():
            topic_id = id_of(topic) or ZERO_UUID
            answers = [
                no_offset(partition, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if require_stable and self._pending.has(group_id, topic, partition)
                else told(partition, committed)
                for partition, committed in partitions.items()
                if of_topic(committed, topic_id) is not None
            ]
            if answers:
                topics.append(OffsetFetchResponseTopics(topic, topic_id, answers))
        return OffsetFetchResponseGroup(group_id, topics)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group_id, {}).get(topic, {}).get(partition)

    # ---- deleting

    def delete(
        self, group_id: str, request: OffsetDeleteRequest, subscribed: Collection[str] | None
    ) -> tuple[list[CoordinatorRecord], OffsetDeleteResponse]:
        """Offsets of topics that no member reads. `subscribed` None: what the members read is unknown, it may be any topic.

        Partitions without an offset are answered as deleted: what was asked for is so.
        """
        records: list[CoordinatorRecord] = []
        topics: list[OffsetDeleteResponseTopic] = []
        for topic in request.topics:
            in_use = subscribed is None or topic.name in subscribed
            code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE
            answers: list[OffsetDeleteResponsePartition] = []
            for partition in topic.partitions:
                index = partition.partition_index
                if not in_use and self._knows(group_id, topic.name, index):
                    records.append(tombstone(group_id, topic.name, index))
                answers.append(OffsetDeleteResponsePartition(index, code))
            topics.append(OffsetDeleteResponseTopic(topic.name, answers))
        return records, OffsetDeleteResponse(topics=topics)

    def delete_all(self, group_id: str) -> list[CoordinatorRecord]:
        """The group goes, and with it all it has committed or staged."""
        committed = (Place(group_id, topic, partition) for topic, partition, _ in self._of_group(group_id))
        places = dict.fromkeys((*committed, *self._pending.places(group_id)))
        return [tombstone(*place) for place in places]

    def topic_deleted(self, name: str, topic_id: bytes) -> list[CoordinatorRecord]:
        """The topic is gone. Offsets in a later topic of the same name stay; those that know no topic id go."""
        tombstones: list[CoordinatorRecord] = []
        for group_id, topics in self._committed.items():
            for partition, committed in topics.get(name, {}).items():
                if of_topic(committed, topic_id) is not None:
                    tombstones.append(tombstone(group_id, name, partition))
        staged = (place for group_id in self._pending.groups() for place in self._pending.places(group_id))
        tombstones += [
            tombstone(*place)
            for place in staged
            if place.topic == name and self.get(*place) is None and self._staged_for(place, topic_id)
        ]
        return tombstones

    def _staged_for(self, place: Place, topic_id: bytes) -> bool:
        """All that is staged for the partition is about the topic of this id."""
        return all(
            staged is None or of_topic(staged, topic_id) is not None
            for _, staged in self._pending.staged(place)
        )

    # ---- expiring

    def expired(
        self,
        group_id: str,
        now_wall_ms: int,
        *,
        subscribed_topics: Collection[str] | None,
        group_is_empty: bool,
        empty_since: int | None = None,
    ) -> list[CoordinatorRecord]:
        """Tombstones of what nobody has needed for the retention (KIP-211). Who asks says what kind of group it is:

        * a simple group, that only commits: empty, `empty_since` None. Counts from the commit.
        * a classic group with a protocol, empty: `empty_since` is the moment from the log, None if an old release wrote none. Counts from
          the later of that moment and the commit (Kafka from that moment alone, so that what an operator sets may go at once).
        * a classic group of consumers, stable: the topics that it reads. Other topics count from the commit.
        * a classic group in a rebalance, of another protocol type, or with subscriptions that cannot be read: None as topics, not empty.
          Nothing expires.
        * a consumer group: the topics that it reads, `empty_since` None. Other topics count from the commit.

        Never for a topic that members read, and never where a transaction is open (I37). A commit of an old client that came with its own
        retention expires at that moment, whatever the group does.
        """
        if subscribed_topics is None and not group_is_empty:
            return []
        counts_from = empty_since if group_is_empty and empty_since is not None else _NEVER
        latest = now_wall_ms - self._settings.offsets_retention_ms
        tombstones: list[CoordinatorRecord] = []
        for topic, partition, committed in self._of_group(group_id):
            if subscribed_topics is not None and topic in subscribed_topics:
                continue
            if committed.expire_timestamp != NO_EXPIRY:
                is_over = now_wall_ms >= committed.expire_timestamp
            else:
                is_over = max(committed.commit_timestamp, counts_from) <= latest
            if is_over and not self._pending.has(group_id, topic, partition):
                tombstones.append(tombstone(group_id, topic, partition))
        return tombstones

    def leaves_nothing(self, group_id: str, tombstones: Collection[CoordinatorRecord]) -> bool:
        """Whether the group has neither a committed nor a staged offset once these tombstones of it are applied."""
        return len(tombstones) == self.count(group_id) and not self._pending.has_group(group_id)

    # ---- looking

    def count(self, group_id: str) -> int:
        return sum(map(len, self._committed.get(group_id, {}).values()))

    def has_pending(self, group_id: str) -> bool:
        return self._pending.has_group(group_id)

    def has_any(self, group_id: str) -> bool:
        """Committed, or staged by a transaction."""
        return group_id in self._committed or self.has_pending(group_id)

    def groups(self) -> Iterable[str]:
        """Of which something is committed or staged."""
        return dict.fromkeys((*self._committed, *self._pending.groups()))

    def _of_group(self, group_id: str) -> Iterator[tuple[str, int, CommittedOffset]]:
        for topic, partitions in self._committed.get(group_id, {}).items():
            for partition, committed in partitions.items():
                yield topic, partition, committed

    def _knows(self, group_id: str, topic: str, partition: int) -> bool:
        return self.get(group_id, topic, partition) is not None or self._pending.has(
            group_id, topic, partition
        )

    # ---- what the log says

    def replay_commit(
        self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """`producer_id` is that of the batch if it is transactional: the offset then waits for the marker."""
        place = Place(key.group, key.topic, key.partition)
        if value is None:
            self._remove(place)
            self._pending.forget(place)
            return
        committed = committed_offset(value, self._shared_topic_id(place, value.topic_id))
        if producer_id == NO_PRODUCER_ID:
            self._pending.outdate(place)
            self._put(place, committed)
        else:
            self._pending.stage(place, producer_id, committed)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        for place, offset in self._pending.end(producer_id, committed=committed):
            self._put(place, offset)

    def persistent_state(self) -> dict[str, Any]:
        """All that the log says, as plain data: equal for two instances that are in the same state."""
        return {
            "committed": {
                Place(group_id, topic, partition): committed
                for group_id in self._committed
                for topic, partition, committed in self._of_group(group_id)
            },
            "pending": {
                place: self._pending.staged(place)
                for group_id in self._pending.groups()
                for place in self._pending.places(group_id)
            },
        }

    def _put(self, place: Place, committed: CommittedOffset) -> None:
        partitions = self._committed.setdefault(place.group_id, {}).setdefault(place.topic, {})
        if place.partition not in partitions:
            self._count += 1
        partitions[place.partition] = committed

    def _shared_topic_id(self, place: Place, topic_id: bytes) -> bytes:
        """One object for all partitions of a topic, where that is as easy as here: there are many partitions."""
        if topic_id == ZERO_UUID:
            return ZERO_UUID
        for committed in self._committed.get(place.group_id, {}).get(place.topic, {}).values():
            return committed.topic_id if committed.topic_id == topic_id else topic_id
        return topic_id

    def _remove(self, place: Place) -> None:
        topics = self._committed.get(place.group_id, {})
        partitions = topics.get(place.topic, {})
        if partitions.pop(place.partition, None) is None:
            return
        self._count -= 1
        if not partitions:
            del topics[place.topic]
            if not topics:
                del self._committed[place.group_id]
