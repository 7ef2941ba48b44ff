"""The driver's look at the brokers: which partitions belong to a subscription, where their logs begin and end, and what is committed for others to see.

Everything here asks and nothing decides: what a look means is for `bounds`, `loss` and `limits`. Brokers that are away for a while are waited for: as long as
`kafka.default.api.timeout.ms` says, and for `fetchOffset.numRetries` more tries at least, `fetchOffset.retryIntervalMs` apart.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.client.cluster import ClusterClient, TopicMissingError
from tidelog.client.errors import ClientError, UnsupportedRequestError, check
from tidelog.client.groups import Committed, Groups
from tidelog.client.metadata import ZERO_ID, TopicInfo, TopicPartition
from tidelog.client.offsets import EARLIEST, LATEST, FoundOffset, end_of_epochs, list_offsets
from tidelog.spark.loss import Cause, LogView, Loss, losses_of
from tidelog.spark.offsets import NO_EPOCH, Offsets
from tidelog.spark.options import Assigned, Names, Pattern, SourceOptions
from tidelog.spark.sizes import bytes_per_offset
from tidelog.spark.warm import WarmClient, warm_client
from tidelog.wire.error_codes import ErrorCode

T = TypeVar("T")
logger = logging.getLogger(__name__)

TRY_MS_MAX: Final = 10_000
"""One try, the client's own retries included."""


class Logs:
    """Of one subscription."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._warm: WarmClient | None = None
        self._topics: dict[str, TopicInfo] = {}
        self._asked_at: float | None = None

    @property
    def _client(self) -> WarmClient:
        if self._warm is None:
            self._warm = warm_client(self._options.servers, self._options.client)
        return self._warm

    # -- looks ------------------------------------------------------------------------------------------------------

    def look(self, read: Offsets | None = None) -> LogView:
        """All partitions that are there, with both ends. `read`: where a stream is, whose epochs are compared with the leaders'."""
        return self._patiently(lambda cluster: self._look(cluster, read))

    def offsets_for_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundOffset]:
        return self._patiently(lambda cluster: self._list(cluster, times_ms))

    def losses(self, read: Offsets, view: LogView) -> tuple[LogView, list[Loss]]:
        """What of a stream's logs is gone. A broker may know too little for a moment (just started, just elected), so it is looked again before that counts."""
        losses = losses_of(read, self._with_open_transactions(view, read))
        for _ in range(self._options.retries):
            if all(loss.cause in (Cause.AGED_OUT, Cause.MADE_ANEW) for loss in losses):
                break
            time.sleep(self._options.retry_pause_ms / 1000)
            self._asked_at = None
            view = self.look(read)
            losses = losses_of(read, self._with_open_transactions(view, read))
        return view, losses

    def _with_open_transactions(self, view: LogView, read: Offsets) -> LogView:
        """For readers of committed data the end may be before what was read when open transactions were no matter: nothing is lost then."""
        behind = [tp for tp, offset in read.next.items() if tp in view.latest and offset > view.latest[tp]]
        if not behind or not self._options.reads_committed:
            return view
        wanted = dict.fromkeys(behind, LATEST)
        found = self._patiently(lambda cluster: list_offsets(cluster, wanted, timeout_ms=TRY_MS_MAX))
        return replace(view, latest={**view.latest, **{tp: each.offset for tp, each in found.items()}})

    def bytes_per_offset(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        return self._patiently(lambda cluster: bytes_per_offset(cluster, positions))

    async def _look(self, cluster: ClusterClient, read: Offsets | None) -> LogView:
        topics = await self._find_topics(cluster)
        tps = self._partitions(topics)
        earliest, latest = await asyncio.gather(
            self._list(cluster, dict.fromkeys(tps, EARLIEST)), self._list(cluster, dict.fromkeys(tps, LATEST))
        )
        epochs = {tp: each.leader_epoch for tp, each in latest.items() if each.leader_epoch != NO_EPOCH}
        return LogView(
            earliest={tp: each.offset for tp, each in earliest.items()},
            latest={tp: each.offset for tp, each in latest.items()},
            topic_ids={
                name: info.topic_id.hex() for name, info in topics.items() if info.topic_id != ZERO_ID
            },
            epoch_ends=await self._epoch_ends(cluster, read, epochs) if read is not None else {},
            epochs=epochs,
        )

    async def _find_topics(self, cluster: ClusterClient) -> dict[str, TopicInfo]:
        """Those of the subscription that exist, as of now or, if new partitions may wait, of a while ago."""
        now = time.monotonic()
        is_fresh = self._asked_at is not None and now - self._asked_at < self._options.metadata_ttl_ms / 1000
        if is_fresh and not cluster.metadata.doubted.intersection(self._topics):
            return self._topics
        match self._options.subscription:
            case Names(topics):
                wanted: frozenset[str] | None = topics
            case Assigned(partitions):
                wanted = frozenset(tp.topic for tp in partitions)
            case Pattern():
                wanted = None
        metadata = await cluster.refresh_metadata(wanted)
        found: dict[str, TopicInfo] = {}
        for name in self._matching(metadata.topics) if wanted is None else sorted(wanted):
            info = metadata.topics.get(name)
            if info is None or info.error_code in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_ID,
            ):
                continue
            check(info.error_code, f"topic {name}")
            found[name] = info
        self._topics, self._asked_at = found, now
        return found

    def _matching(self, topics: Mapping[str, TopicInfo]) -> list[str]:
        assert isinstance(self._options.subscription, Pattern)
        pattern = re.compile(self._options.subscription.pattern)
        return [
            name for name, info in sorted(topics.items()) if not info.is_internal and pattern.fullmatch(name)
        ]

    def _partitions(self, topics: Mapping[str, TopicInfo]) -> list[TopicPartition]:
        there = [TopicPartition(name, number) for name, info in topics.items() for number in info.partitions]
        if isinstance(self._options.subscription, Assigned):
            return [tp for tp in there if tp in self._options.subscription.partitions]
        return there

    async def _list(
        self, cluster: ClusterClient, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        if not wanted:
            return {}
        return await list_offsets(
            cluster,
            wanted,
            isolation_level=1 if self._options.reads_committed else 0,
            timeout_ms=TRY_MS_MAX,
        )

    async def _epoch_ends(
        self, cluster: ClusterClient, read: Offsets, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Leaders of the same epoch have lost nothing; others are asked how far they have what was read."""
        asked = {
            tp: (epochs[tp], epoch)
            for tp, epoch in read.epochs.items()
            if tp in epochs and epoch != NO_EPOCH and epochs[tp] != epoch
        }
        if not asked:
            return {}
        try:
            found = await end_of_epochs(cluster, {tp: (NO_EPOCH, epoch) for tp, (_, epoch) in asked.items()})
        except UnsupportedRequestError:
            return {}
        return {tp: end for tp, (end, _) in found.items() if end >= 0}

    # -- what others see --------------------------------------------------------------------------------------------

    def commit(self, group: str, offsets: Offsets) -> None:
        """How far a stream is, for tools that show lag. Nobody reads it back, so whatever fails is only told."""
        committed = {
            tp: Committed(offset, offsets.epochs.get(tp, NO_EPOCH), "") for tp, offset in offsets.next.items()
        }
        topic_ids = {topic: bytes.fromhex(each) for topic, each in offsets.topic_ids.items()}
        client = self._client

        async def commit() -> None:
            await Groups(client.cluster).commit(group, committed, topic_ids=topic_ids, timeout_ms=TRY_MS_MAX)

        try:
            client.run(commit())
        except ClientError as error:
            logger.warning("group %s does not show how far the stream is: %s", group, error)

    # -- patience ---------------------------------------------------------------------------------------------------

    def _patiently(self, ask: Callable[[ClusterClient], Awaitable[T]]) -> T:
        client = self._client

        async def once() -> T:
            return await ask(client.cluster)

        started = time.monotonic()
        budget_seconds = client.settings.default_api_timeout_ms / 1000
        tries = 0
        while True:
            tries += 1
            try:
                return client.run(once())
            except TopicMissingError:
                if tries > self._options.retries:
                    raise
                self._asked_at = None
            except ClientError as error:
                waited = time.monotonic() - started
                if not error.retriable or (tries > self._options.retries and waited > budget_seconds):
                    error.add_note(
                        f"asked {tries} times in {waited:.0f} s; for more patience, raise kafka.default.api.timeout.ms"
                    )
                    raise
                self._asked_at = None
                logger.warning("the brokers did not answer, trying again: %s", error)
            time.sleep(self._options.retry_pause_ms / 1000)
