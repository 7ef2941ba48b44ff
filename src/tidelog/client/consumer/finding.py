"""Finds where reading begins or goes on: what a group has committed, a reset, a new leader's log, a topic that was made anew.

Each is asked about in the background (`errands`), for all partitions that want it together (`positions.Want`). What cannot be decided here, because `auto.offset.reset` is none,
the application is told of, and again when it does nothing about it. `fetching` reads only what has a position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from tidelog.client.cluster import ClusterClient, PartitionMissingError, TopicMissingError
from tidelog.client.consumer.errands import Errands
from tidelog.client.consumer.positions import (
    EARLIEST,
    NO_EPOCH,
    NOWHERE,
    PartitionState,
    Positions,
    Spot,
    Want,
)
from tidelog.client.consumer.resets import Reset
from tidelog.client.errors import (
    ClientError,
    LogTruncatedError,
    NoOffsetError,
    UnsupportedRequestError,
)
from tidelog.client.metadata import ZERO_ID, ClusterMetadata, TopicPartition
from tidelog.client.offsets import end_of_epochs, list_offsets
from tidelog.client.settings import ConsumerSettings
from tidelog.records.record import INT64_MAX

logger = logging.getLogger(__name__)

FindCommitted = Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, Spot]]]


class Finding:
    def __init__(
        self,
        cluster: ClusterClient,
        settings: ConsumerSettings,
        positions: Positions,
        errands: Errands,
        *,
        find_committed: FindCommitted | None,
        tell: Callable[[ClientError], None],
        cut_held: Callable[[TopicPartition, int], int | None],
    ) -> None:
        """`find_committed` looks up a group's offsets, None without a group; `tell` is for what the application must hear of.

        `cut_held` is told where a log was cut, and says which offset the application would have got next, if that is before `positions`.
        """
        self._cluster = cluster
        self._settings = settings
        self._positions = positions
        self._errands = errands
        self._find_committed = find_committed
        self._tell = tell
        self._cut_held = cut_held
        self._reset = Reset.parse(settings.auto_offset_reset)
        self._metadata = ClusterMetadata()  # whose leaders were noticed
        self._loop = asyncio.get_running_loop()

    def look(self, now: float) -> None:
        for want, work in (
            (Want.COMMITTED, self._find),
            (Want.RESET, self._reset_positions),
            (Want.VALIDATE, self._validate),
        ):
            states = self._positions.wanting(want, now)
            if states and want not in self._errands:
                self._errands.begin(want, partial(work, states))

    def _again_later(self, states: Iterable[PartitionState]) -> None:
        moment = self._loop.time() + self._cluster.backoff().next_seconds()
        for state in states:
            state.ask_at = moment

    async def _find(self, states: list[PartitionState]) -> None:
        """Where the group was; a partition that it was never in begins by `auto.offset.reset`."""
        versions = {state.tp: state.version for state in states}
        try:
            found = await self._find_committed(list(versions)) if self._find_committed is not None else {}
        except ClientError as error:
            self._again_later(states)
            if not error.retriable:
                raise
            logger.debug("no committed offsets: %s", error)
            return
        for state in states:
            if state.version != versions[state.tp] or state.want is not Want.COMMITTED:
                continue
            spot = found.get(state.tp)
            if spot is not None:
                state.move_to(spot)
            elif self._reset is not None:
                state.wants(Want.RESET)
            else:
                self._wait_for_a_decision(state)
                self._tell(
                    NoOffsetError(
                        f"{state.tp}: nothing is committed, and auto.offset.reset=none; seek to where reading should begin",
                        state.tp,
                        None,
                    )
                )

    async def _reset_positions(self, states: list[PartitionState]) -> None:
        versions = {state.tp: state.version for state in states}
        wanted = {state.tp: self._reset_target(state) for state in states}
        ask = partial(
            list_offsets,
            self._cluster,
            isolation_level=self._settings.isolation,
            timeout_ms=self._settings.default_api_timeout_ms,
        )
        try:
            found = await ask(wanted)
            # No record is as late as that: the end is where the next one will be.
            late = {tp: -1 for tp, each in found.items() if each.offset < 0}
            ends = await ask(late) if late else {}
        except (TopicMissingError, PartitionMissingError):
            # Others do not wait for what is not there: they are asked about again at once.
            leader_of = self._cluster.metadata.leader_of
            self._again_later([state for state in states if leader_of(state.tp) is None] or states)
            raise
        except ClientError as error:
            self._again_later(states)
            if not error.retriable:
                raise
            logger.debug("no offsets: %s", error)
            return
        for state in states:
            if state.version == versions[state.tp] and state.want is Want.RESET:
                each = ends.get(state.tp) or found[state.tp]
                state.move_to(Spot(each.offset, NO_EPOCH))

    def _reset_target(self, state: PartitionState) -> int:
        if state.reset_to is not None:
            return state.reset_to
        assert self._reset is not None
        return self._reset.timestamp()

    async def _validate(self, states: list[PartitionState]) -> None:
        versions = {state.tp: state.version for state in states}
        epochs = {}
        for state in states:
            leader = self._cluster.metadata.leader_of(state.tp)
            if leader is not None:
                epochs[state.tp] = (leader.leader_epoch, state.epoch)
        try:
            ends = await end_of_epochs(self._cluster, epochs)
        except UnsupportedRequestError:  # brokers before Kafka 2.0: nothing can be compared
            ends = {tp: (INT64_MAX, ours) for tp, (_, ours) in epochs.items()}
        except ClientError as error:
            self._again_later(states)
            self._cluster.forget_leaders({state.tp.topic for state in states})  # another may lead by now
            if not error.retriable and not isinstance(error, (TopicMissingError, PartitionMissingError)):
                raise
            logger.debug("no epochs: %s", error)
            return
        for state in states:
            end = ends.get(state.tp)
            if end is None:
                state.ask_at = self._loop.time() + self._cluster.backoff().next_seconds()
                continue
            cut = self._positions.validated(state.tp, versions[state.tp], epochs[state.tp][0], Spot(*end))
            if cut is not None:
                self._truncated(state, cut)

    # -- what was read may be gone ----------------------------------------------------------------------------------

    def notice_leaders(self) -> set[str]:
        """A new leader may not have what was fetched ahead either, so this concerns every partition. Returns topics without whose leaders nothing can be validated."""
        metadata = self._cluster.metadata
        if metadata is not self._metadata:
            self._metadata = metadata
            for tp, state in self._positions.states.items():
                leader = metadata.leader_of(tp)
                if leader is not None:
                    if state.topic_id not in (ZERO_ID, metadata.topics[tp.topic].topic_id):
                        self._made_anew(state)
                    self._positions.new_leader(tp, leader.leader_epoch)
        return {
            tp.topic
            for tp, state in self._positions.states.items()
            if state.want is Want.VALIDATE and metadata.leader_of(tp) is None
        }

    def _truncated(self, state: PartitionState, cut: Spot) -> None:
        """Records that were read are gone. Going on where the logs part is what `auto.offset.reset` allows; without it the application decides."""
        held_from = self._cut_held(state.tp, cut.offset)
        if held_from is not None:
            if held_from <= cut.offset:
                state.move_to(cut)  # nobody has seen what is gone
                return
            state.position = state.fetch_offset = held_from
        gone = f"records before offset {state.position} were read already: a leader was elected without them"
        text = f"{state.tp}: the log was cut at offset {cut.offset}, and {gone}"
        if cut is NOWHERE:
            text = f"{state.tp}: the log was cut somewhere, and {gone}"
        if self._reset is None:
            self._wait_for_a_decision(state)
            self._tell(LogTruncatedError(text + "; seek to where reading should go on", state.tp, cut.offset))
        elif cut is NOWHERE:
            logger.warning("%s; going on by auto.offset.reset=%s", text, self._reset)
            state.wants(Want.RESET)
        else:
            logger.warning("%s; going on at offset %d", text, cut.offset)
            state.move_to(cut)

    def _made_anew(self, state: PartitionState) -> None:
        """Another topic has the name of the one that was read. All its records are new, whatever offsets they have."""
        self._cut_held(state.tp, 0)
        state.topic_id = ZERO_ID
        text = f"{state.tp}: the topic was deleted and made anew"
        if self._reset is None:
            offset = state.position
            state.wants(Want.COMMITTED)
            self._wait_for_a_decision(state)
            self._tell(
                NoOffsetError(
                    f"{text}, and auto.offset.reset=none; seek to where reading should begin",
                    state.tp,
                    offset,
                )
            )
            return
        logger.warning("%s; going on at its beginning", text)
        state.wants(Want.RESET, reset_to=EARLIEST)

    def out_of_range(self, state: PartitionState, offset: int) -> bool:
        """A fetch was refused: its offset is not in the log. False if the application must say where to go on."""
        if self._reset is None:
            self._tell(
                NoOffsetError(
                    f"{state.tp}: offset {offset} is not in the log (any more), and auto.offset.reset=none; seek to where reading should go on",
                    state.tp,
                    offset,
                )
            )
            return False
        logger.warning(
            "%s: offset %d is not in the log; going on by auto.offset.reset=%s", state.tp, offset, self._reset
        )
        state.wants(Want.RESET)
        return True

    def _wait_for_a_decision(self, state: PartitionState) -> None:
        """The application is told. If it does nothing about it, it will be told again."""
        state.ask_at = self._loop.time() + self._settings.request_timeout_ms / 1000
