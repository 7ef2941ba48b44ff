"""The group coordinator of this broker: from requests to shards, from shards to the partitions of `__consumer_offsets`, and the clock.

The shell around `tidelog.coordinator`: it owns no rules of groups. A partition of `__consumer_offsets` that this broker leads is loaded into a
shard and serves from then on; the topic is made when the first client asks for a coordinator. Everything happens on the loop's thread; what
must be read from the disk for a load is brought into memory by a thread first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.group_journal import PartitionJournal
from tidelog.broker.group_topics import ImageTopics
from tidelog.broker.held_answers import HeldAnswers
from tidelog.broker.pending import Pending
from tidelog.broker.settings import group_settings
from tidelog.controller.image import MetadataImage, TopicImage
from tidelog.coordinator.group.placement import partition_of
from tidelog.coordinator.group.record_serde import decode_record
from tidelog.coordinator.group.refusals import Refuse
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.group.world import Client
from tidelog.coordinator.outcome import Now, Outcome, Waiter, answered
from tidelog.coordinator.runtime import Runtime
from tidelog.errors import RequestError
from tidelog.internal_topics import CONSUMER_OFFSETS
from tidelog.replication.partition import Partition
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.groups")

Call = Callable[[GroupShard, Waiter, Now], Outcome]


class Question(NamedTuple):
    """What one shard is asked on behalf of a request that may concern many groups."""

    group_id: str
    call: Call
    refuse: Refuse


class MemberRequest(Protocol):
    group_id: str
    member_id: str


class _Ask:
    """A waiter: where one answer of a shard goes."""

    __slots__ = ("deliver",)

    def __init__(self, deliver: Callable[[Any], None]) -> None:
        self.deliver = deliver


def client_of(context: RequestContext) -> Client:
    """Hosts are written as Java writes addresses, which is what users of Kafka's tools know."""
    return Client(context.client_id or "", f"/{context.connection.peer_host}", context.version)


class GroupCoordinator:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._runtime: Runtime[GroupShard] = Runtime(
            self._new_shard,
            decode_record,
            lambda waiter, response: waiter.deliver(response),
            on_lost=self._lost,
        )
        self._held = HeldAnswers(self._loop)
        self._journals: dict[int, PartitionJournal] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._loading: asyncio.Task[None] | None = None
        self._creating = asyncio.Lock()
        self._topics = ImageTopics(lambda: broker.image, lambda: broker.config)
        self._stopped = False

    # ---- where groups are

    @property
    def topic(self) -> TopicImage | None:
        return self._broker.image.topics_by_name.get(CONSUMER_OFFSETS)

    def partition_of(self, group_id: str) -> int:
        topic = self.topic
        return 0 if topic is None else partition_of(group_id, len(topic.partitions))

    async def create_topic(self) -> None:
        """On first use, with as many replicas as the setting says and the cluster has brokers for."""
        config = self._broker.config
        async with self._creating:
            if self.topic is not None:
                return
            alive = sum(not broker.fenced for broker in self._broker.image.brokers.values())
            await self._broker.topics.create(
                CONSUMER_OFFSETS,
                config.int("offsets.topic.num.partitions"),
                {
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.int("offsets.topic.segment.bytes")),
                },
                replication_factor=max(1, min(config.int("offsets.topic.replication.factor"), alive)),
                exist_ok=True,
            )

    # ---- requests

    def answer(
        self, context: RequestContext, group_id: str, call: Call, refuse: Refuse, *, alone: bool = False
    ) -> Pending:
        """Let the group's shard answer a request. `alone`: requests behind it on the connection wait for it."""
        pending = context.defer(alone=alone)
        self._ask(Question(group_id, call, refuse), lambda response: context.answer(pending, response))
        return pending

    def answer_in_time(
        self,
        context: RequestContext,
        member: MemberRequest,
        call: Call,
        refuse: Refuse,
        patience_ms: Callable[[GroupShard], int],
        *,
        alone: bool = False,
    ) -> Pending:
        """As `answer`. A success may wait for something to tell (`held_answers.py`), for as long as the shard says then."""
        pending = context.defer(alone=alone)
        asked_at = self._now()
        # Asked again, it is still the sign of life that it was when it came.
        question = Question(
            member.group_id, lambda shard, waiter, _now: call(shard, waiter, asked_at), refuse
        )

        def answer(response: Any) -> None:
            context.answer(pending, response)

        def answer_or_hold(response: Any) -> None:
            seconds = 0.0
            if response.error_code == ErrorCode.NONE and not context.connection.has_more_behind(pending):
                seconds = self._hold_seconds(context, member, patience_ms)
            if seconds > 0:
                ask_again = partial(self._ask, question, answer)
                self._held.hold(
                    member.group_id, member.member_id, pending, seconds, partial(answer, response), ask_again
                )
            else:
                answer(response)

        self._ask(question, answer_or_hold)
        return pending

    def _hold_seconds(
        self, context: RequestContext, member: MemberRequest, patience_ms: Callable[[GroupShard], int]
    ) -> float:
        held_ms_max = self._broker.config.int("group.heartbeat.max.held.ms")
        if held_ms_max == 0 or not self._held.may_wait(context.connection.client_software, member.member_id):
            return 0.0
        shard = self._runtime.shard(self.partition_of(member.group_id))
        return 0.0 if shard is None else min(held_ms_max, patience_ms(shard)) / 1000

    def answer_all(
        self,
        context: RequestContext,
        questions: Sequence[Question],
        finish: Callable[[list[Any]], Any],
    ) -> Pending:
        """Ask the shards of several groups; the answer is made of theirs, in the order of the questions."""
        pending = context.defer()
        found: list[Any] = [None] * len(questions)
        left = len(questions)

        def deliver(number: int, response: Any) -> None:
            nonlocal left
            found[number] = response
            left -= 1
            if left == 0:
                context.answer(pending, finish(found))

        for number, question in enumerate(questions):
            self._ask(question, partial(deliver, number))
        if not questions:
            context.answer(pending, finish(found))
        return pending

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> Pending:
        """Of all shards here. One that still loads may have groups that nobody can list yet."""
        states = frozenset(state.strip().lower() for state in request.states_filter)
        types = frozenset(kind.lower() for kind in request.types_filter)

        def finish(found: list[list[ListedGroup] | ErrorCode]) -> ListGroupsResponse:
            groups: list[ListedGroup] = []
            for each in found:
                if isinstance(each, ErrorCode):
                    if each != ErrorCode.NOT_COORDINATOR:
                        return ListGroupsResponse(error_code=each)
                else:
                    groups += each
            return ListGroupsResponse(groups=groups)

        pending = context.defer()
        found: list[Any] = []
        partitions = list(self._journals)

        def deliver(response: Any) -> None:
            found.append(response)
            if len(found) == len(partitions):
                context.answer(pending, finish(found))

        for partition in partitions:
            self._submit(
                partition,
                lambda shard, waiter, now: answered(waiter, shard.list_groups(states, types)),
                lambda code, _message: code,
                deliver,
            )
        if not partitions:
            context.answer(pending, ListGroupsResponse())
        return pending

    def _ask(self, question: Question, deliver: Callable[[Any], None]) -> None:
        self._submit(self.partition_of(question.group_id), question.call, question.refuse, deliver)

    def _submit(self, partition: int, call: Call, refuse: Refuse, deliver: Callable[[Any], None]) -> None:
        def handler(shard: GroupShard, waiter: Waiter, now: Now) -> Outcome:
            try:
                return call(shard, waiter, now)
            except (
                RequestError
            ) as error:  # here, because the runtime knows of codes only, and people want reasons
                return answered(waiter, refuse(error.code, error.message))

        self._runtime.submit(partition, handler, _Ask(deliver), lambda code: refuse(code, ""), self._now())
        shard = self._runtime.shard(partition)
        if shard is not None:
            self._wake_by(shard.timers.next_deadline_ms())

    # ---- leadership

    def metadata_changed(self, image: MetadataImage, deleted: Iterable[TopicImage] = ()) -> None:
        """Lead the shards of the partitions that are led here now, and tell all shards of the topics that there are."""
        if self._stopped:
            return
        topic = image.topics_by_name.get(CONSUMER_OFFSETS)
        led = {} if topic is None else {index: self._led(topic, index) for index in topic.partitions}
        for index in list(self._journals):
            if led.get(index) is not self._journals[index].partition:
                del self._journals[index]
                self._runtime.resign(index)
                self._held.disturb_all()  # also those of other shards: they are told that all is well
        for index, partition in led.items():
            if partition is not None:
                journal = self._journals.get(index)
                if journal is None:
                    journal = self._journals[index] = PartitionJournal(self._broker, partition)
                self._runtime.become_leader(index, partition.leader_epoch, journal)
        now = self._now()
        gone = [(each.name, each.topic_id) for each in deleted]
        self._runtime.for_each(lambda shard, at: shard.topics_changed(gone, at), now)
        self._load_in_background()
        self._wake_by(self._runtime.next_deadline_ms())

    def _led(self, topic: TopicImage, index: int) -> Partition | None:
        partition = self._broker.partitions.find(CONSUMER_OFFSETS, index)
        if partition is None or partition.stopped_with is not None:
            return None
        return partition if topic.partitions[index].leader == self._broker.node_id else None

    def _new_shard(self, partition: int) -> GroupShard:
        shard = GroupShard(group_settings(self._broker.config), self._broker.rng, self._topics)
        shard.classic.when_disturbed(self._held.disturbed)
        return shard

    def _lost(self, partition: int, reason: str) -> None:
        self._held.disturb_all()
        journal = self._journals.get(partition)
        if journal is not None and journal.partition.stopped_with is not None:
            # Its directory is offline: it will not be loaded again, and who asks is to look elsewhere.
            del self._journals[partition]
            self._runtime.resign(partition)
        logger.error(
            "the groups of %s-%d are not served until they are loaded again: %s",
            CONSUMER_OFFSETS,
            partition,
            reason,
        )
        self._wake_by(self._runtime.next_deadline_ms())

    # ---- loading

    def _load_in_background(self) -> None:
        if self._runtime.is_loading and self._loading is None:
            self._loading = self._loop.create_task(self._load(), name="tidelog-load-groups")

    async def _load(self) -> None:
        """A step at a time, with everybody else's turn in between. What is loaded next is brought into memory first, by a thread.

        Nothing is awaited between the last look at what loads and the end: who begins to load then starts a new task.
        """
        warmed: set[int] = set()
        try:
            while (partition := self._runtime.next_to_load) is not None and not self._stopped:
                try:
                    if partition not in warmed:
                        warmed.add(partition)
                        await self._broker.read_in_thread(self._journals[partition].warm)
                    else:
                        self._runtime.load_some(self._now())  # one that fails pauses, and the others go on
                except Exception:
                    logger.exception("bug: loading the groups failed; it is tried again")
                await asyncio.sleep(0)
        finally:
            self._loading = None
            if not self._stopped:
                self._wake_by(self._runtime.next_deadline_ms())

    # ---- time

    def _now(self) -> Now:
        clock = self._broker.clock
        return Now(int(clock.monotonic() * 1000), clock.wall_ms())

    def _wake_by(self, deadline_ms: int | None) -> None:
        if (
            deadline_ms is None
            or self._stopped
            or (self._timer is not None and self._timer_ms <= deadline_ms)
        ):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_later(max(0, deadline_ms - self._now().ms) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        try:
            self._runtime.expire(self._now())
        except Exception:
            logger.exception("bug: a deadline of a group failed; its shard is loaded again")
        self._load_in_background()
        self._wake_by(self._runtime.next_deadline_ms())

    # ---- the end

    def stop(self) -> None:
        """Everybody who waits is told to look for another coordinator."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for index in list(self._journals):
            self._runtime.resign(index)
        self._journals.clear()
        self._held.disturb_all()
