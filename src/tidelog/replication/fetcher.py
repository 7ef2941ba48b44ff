"""Replicates from one leader broker: asks for all partitions that it leads and we follow, in one request after the other.

One request is in flight at a time, so that answers come in the order of questions. In `durability=fsync` the next request waits until what the
last answer brought is fdatasync'ed: the offset that it names is a claim that the leader counts (M33).

An answer is applied to a partition only if the partition is still in the role, and its log still where it was, when the question was asked:
between the two a new leader may have been named, and what an old one says must neither cut nor fill the log (I25, M4). Troubles of a
partition are its own: it pauses (`replica.fetch.backoff.ms`) while the others go on. One that is fenced waits for newer metadata. One whose leader does not know yet that it leads is asked for again
soon: nothing is committed before it is fetched, and the leader is a few milliseconds behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog.errors import CorruptDataError, RequestError
from tidelog.ports import Clock, Peers, Scheduler, TimerHandle
from tidelog.replication.fetch_asking import SESSION_ERRORS, AskingSession, Key
from tidelog.replication.follower import Follower, Position
from tidelog.replication.partition import Partition
from tidelog.storage.disk import DiskError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

logger = logging.getLogger("tidelog.replication")

NEVER: Final = float("inf")
LEADER_IS_BEHIND: Final = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH))
SOON_MS: Final = 10
"""The shortest pause for such a leader. Each is a quarter of how long it has been behind, up to `replica.fetch.backoff.ms`: little is added to that, and few questions are asked in vain."""


class FetcherSettings(NamedTuple):
    """In milliseconds and bytes; Kafka's names begin with `replica.fetch.`."""

    wait_max_ms: int = 500
    min_bytes: int = 1
    partition_bytes_max: int = 1 << 20
    response_bytes_max: int = 10 << 20
    backoff_ms: int = 1000
    timeout_ms: int = 30_000  # replica.socket.timeout.ms


class _Asked(NamedTuple):
    """A partition as it was when the leader was asked."""

    partition: Partition
    follower: Follower
    position: Position


class _Followed:
    """A partition of this fetcher, in one leader epoch. It is not asked for before `not_before`."""

    __slots__ = ("behind_since", "not_before", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.not_before = 0.0
        self.behind_since: float | None = None
        """When the leader first said that it does not lead, or not in this epoch."""


class Fetcher:
    def __init__(
        self,
        leader_id: int,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        peers: Peers,
        scheduler: Scheduler,
        clock: Clock,
        settings: FetcherSettings,
        on_disk_error: Callable[[Partition, DiskError], None],
    ) -> None:
        self.leader_id = leader_id
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._peers = peers
        self._scheduler = scheduler
        self._clock = clock
        self.settings = settings
        self._on_disk_error = on_disk_error
        self._session = AskingSession()
        self._followed: dict[Key, _Followed] = {}
        self._in_flight: dict[Key, _Asked] | None = None
        self._woken = False
        self._closed = False
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, partition: Partition) -> None:
        """Follow a partition, or go on following it in a new leader epoch."""
        self._followed[_key(partition)] = _Followed(partition)
        partition.on_synced = self._synced
        self._wake()

    def remove(self, partition: Partition) -> None:
        if self._followed.pop(_key(partition), None) is not None:
            if partition.on_synced == self._synced:  # otherwise another fetcher has it by now
                partition.on_synced = None
            self._wake()

    def close(self) -> None:
        """An answer that comes later is not looked at."""
        self._closed = True
        self._cancel_timer()
        for followed in self._followed.values():
            followed.partition.on_synced = None
        self._followed.clear()

    # ---- asking

    def _wake(self) -> None:
        if not self._woken and not self._closed:
            self._woken = True
            self._scheduler.call_soon(self._ask)

    def _synced(self, partition: Partition) -> None:
        self._wake()

    def _ask(self) -> None:
        self._woken = False
        self._cancel_timer()
        if self._closed or self._in_flight is not None:
            return
        ready = self._ready()
        if not ready:
            return
        self._in_flight = ready
        settings = self.settings
        timeout_s = (settings.wait_max_ms + settings.timeout_ms) / 1000
        self._peers.ask(self.leader_id, self._request(ready), self._answered, timeout_s=timeout_s)

    def _ready(self) -> dict[Key, _Asked]:
        """All that can be asked for now. Nothing while a sync is under way; a timer is set for what pauses."""
        now = self._clock.monotonic()
        ready: dict[Key, _Asked] = {}
        next_at = NEVER
        for key, followed in self._followed.items():
            partition = followed.partition
            follower = partition.follower
            if follower is None or follower.leader_id != self.leader_id:
                continue  # it has another role by now; whoever gave it that takes it away from here
            if not partition.is_synced():
                return {}
            if followed.not_before > now:
                next_at = min(next_at, followed.not_before)
            else:
                ready[key] = _Asked(partition, follower, follower.position())
        if next_at < NEVER:
            self._timer = self._scheduler.call_later(next_at - now, self._wake)
        return ready

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _request(self, ready: dict[Key, _Asked]) -> FetchRequest:
        settings = self.settings
        # Most of what is followed stands still, and is only compared: what the leader has to hear is built for the others.
        session_id, epoch, changed, forgotten = self._session.ask(
            {key: (asked.follower.epoch, *asked.position) for key, asked in ready.items()}
        )
        topics: dict[bytes, FetchTopic] = {}
        for key in changed:
            topic = topics.get(key.topic_id)
            if topic is None:
                topic = topics[key.topic_id] = FetchTopic(topic_id=key.topic_id)
            topic.partitions.append(self._wanted(ready[key]))
        gone: dict[bytes, ForgottenTopic] = {}
        for key in forgotten:
            gone.setdefault(key.topic_id, ForgottenTopic(topic_id=key.topic_id)).partitions.append(
                key.partition
            )
        return FetchRequest(
            replica_state=ReplicaState(self._broker_id, self._broker_epoch()),
            max_wait_ms=settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_bytes_max,
            session_id=session_id,
            session_epoch=epoch,
            topics=list(topics.values()),
            forgotten_topics_data=list(gone.values()),
        )

    def _wanted(self, asked: _Asked) -> FetchPartition:
        offset, last_fetched_epoch, log_start_offset = asked.position
        return FetchPartition(
            partition=asked.partition.index,
            current_leader_epoch=asked.follower.epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=log_start_offset,
            partition_max_bytes=self.settings.partition_bytes_max,
        )

    # ---- answers

    def _answered(self, response: FetchResponse | None) -> None:
        asked, self._in_flight = self._in_flight, None
        if self._closed or asked is None:
            return
        if response is None or response.error_code != ErrorCode.NONE:
            self._session.begin_anew()
            if response is None or response.error_code not in SESSION_ERRORS:
                for key in asked:
                    self._pause(key)
            self._wake()
            return
        self._session.answered(response.session_id)
        for topic in response.responses:
            for data in topic.partitions:
                key = Key(topic.topic_id, data.partition_index)
                if key in asked:
                    self._take(key, asked[key], data)
        self._ask()  # in this turn: the leader's producers wait for what it says

    def _take(self, key: Key, asked: _Asked, data: PartitionData) -> None:
        if not self._is_current(asked):
            return
        partition = asked.partition
        try:
            if data.error_code == ErrorCode.NONE:
                partition.apply_fetched(asked.follower, data, now_ms=self._clock.wall_ms())
            else:
                self._troubled(key, asked, data)
        except DiskError as error:
            self._on_disk_error(partition, error)
        except (CorruptDataError, RequestError) as error:
            logger.error("%r: what broker %d sent was not taken: %s", partition, self.leader_id, error)
            self._pause(key)

    def _is_current(self, asked: _Asked) -> bool:
        """Same role, same epoch, same end of the log as when the leader was asked."""
        partition = asked.partition
        return partition.follower is asked.follower and partition.log.log_end_offset == asked.position.offset

    def _troubled(self, key: Key, asked: _Asked, data: PartitionData) -> None:
        if data.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            self._pause(
                key, until=NEVER
            )  # the leader knows a newer epoch, and so shall we: `add` goes on with it
        elif data.error_code in LEADER_IS_BEHIND:
            self._pause_for_leader(key)
        elif data.error_code != ErrorCode.OFFSET_OUT_OF_RANGE or not asked.follower.start_over(
            data.log_start_offset, now_ms=self._clock.wall_ms()
        ):
            self._pause(key)

    def _pause_for_leader(self, key: Key) -> None:
        followed = self._followed.get(key)
        if followed is not None:
            now = self._clock.monotonic()
            if followed.behind_since is None:
                followed.behind_since = now
            pause_s = max(SOON_MS / 1000, (now - followed.behind_since) / 4)
            self._pause(key, until=now + min(pause_s, self.settings.backoff_ms / 1000))

    def _pause(self, key: Key, *, until: float | None = None) -> None:
        followed = self._followed.get(key)
        if followed is not None:
            now = self._clock.monotonic()
            followed.not_before = now + self.settings.backoff_ms / 1000 if until is None else until


def _key(partition: Partition) -> Key:
    return Key(partition.topic_id, partition.index)
