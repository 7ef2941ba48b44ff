"""Batches to their brokers: the sockets, timers and futures around what `sender` decides.

A look at what is to do is a callback of the loop, not a task: it happens when a batch is full, when one has lingered, when an answer is there, when a broker takes
more again. Who waits for a batch hears its fate through the batch's future (`done`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from tidelog.client.cluster import ClusterClient
from tidelog.client.errors import ClientError, DeliveryFailedError, check
from tidelog.client.links import Links
from tidelog.client.metadata import TopicPartition
from tidelog.client.producer.batch import ProducerBatch
from tidelog.client.producer.delivery import BatchCallback, BatchReport
from tidelog.client.producer.requests import answers_of, produce_request
from tidelog.client.producer.sender import Answer, Fate, Outgoing, Sender
from tidelog.client.producer.sequences import Sequences
from tidelog.client.settings import ProducerSettings
from tidelog.wire.api import ApiKey
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.messages.produce import ProduceResponse

logger = logging.getLogger(__name__)

FAILURES_KEPT: Final = 100


class Shipping:
    def __init__(
        self,
        cluster: ClusterClient,
        settings: ProducerSettings,
        sender: Sender,
        sequences: Sequences | None,
        *,
        want_leaders: Callable[[Iterable[str]], None],
        settled: Callable[[], None],
        on_batch: BatchCallback | None = None,
    ) -> None:
        """`want_leaders`: batches wait for leaders of these topics; `settled`: memory is free; `on_batch`: the application counts batches."""
        self._cluster = cluster
        self._settings = settings
        self._sender = sender
        self._sequences = sequences
        self._want_leaders = want_leaders
        self._settled = settled
        self._on_batch = on_batch
        self._loop = asyncio.get_running_loop()
        self._links = Links(cluster, lane="produce", changed=self.look_soon)
        self._look_handle: asyncio.Handle | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._asking_id: asyncio.Task[None] | None = None
        self._failures: dict[ProducerBatch, ClientError] = {}
        self._failures_uncounted = 0
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        for handle in (self._look_handle, self._alarm):
            if handle is not None:
                handle.cancel()
        if self._asking_id is not None:
            self._asking_id.cancel()
            await asyncio.gather(self._asking_id, return_exceptions=True)
        await self._links.close()

    # -- when -------------------------------------------------------------------------------------------------------

    def look_soon(self) -> None:
        if self._look_handle is None and not self._is_closed:
            self._look_handle = self._loop.call_soon(self._look)

    def wake_at(self, moment: float) -> None:
        if self._alarm is not None:
            if self._alarm.when() <= moment:
                return
            self._alarm.cancel()
        self._alarm = self._loop.call_at(moment, self._rang)

    def _rang(self) -> None:
        self._alarm = None
        self._look()

    def _look(self) -> None:
        """Send what can be sent, give up what has waited too long, and set the alarm for the next time."""
        self._look_handle = None
        if self._is_closed:
            return
        now = self._loop.time()
        self._settle(self._sender.expire(now))
        topics_unknown: set[str] = set()
        while True:
            drained = self._sender.drain(now, self._cluster.metadata, is_paused=self._links.is_paused)
            topics_unknown |= drained.topics_unknown
            if drained.wants_producer_id:
                self._ask_for_producer_id()
            if not drained.requests:
                break
            for outgoing in drained.requests:
                self._write(outgoing)
        if topics_unknown:
            self._want_leaders(topics_unknown)
        moment = self._sender.next_look_at()
        if moment is not None:
            self.wake_at(moment)

    # -- out and back -----------------------------------------------------------------------------------------------

    def _write(self, outgoing: Outgoing) -> None:
        connection = self._links.connection(outgoing.node)
        request = produce_request(outgoing.batches, self._cluster.metadata, self._settings)
        try:
            if self._settings.required_acks == 0:
                connection.post(ApiKey.PRODUCE, request.message, at_most=request.at_most)
                self._heard(outgoing, {batch.tp: Answer(0) for batch in outgoing.batches})
                return
            answer = connection.send(ApiKey.PRODUCE, request.message, at_most=request.at_most)
        except ClientError as error:
            self._lost(outgoing, error)
            return
        answer.add_done_callback(partial(self._answered, outgoing, request.names))

    def _answered(
        self, outgoing: Outgoing, names: Mapping[bytes, str], answer: asyncio.Future[ProduceResponse]
    ) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, ClientError):
            self._lost(outgoing, error)
        else:
            self._heard(outgoing, answers_of(answer.result(), names))

    def _heard(self, outgoing: Outgoing, answers: Mapping[TopicPartition, Answer]) -> None:
        fates, stale = self._sender.answered(outgoing, answers, self._loop.time())
        self._after(fates, stale)

    def _lost(self, outgoing: Outgoing, error: ClientError) -> None:
        fates, stale = self._sender.failed(outgoing, error, self._loop.time())
        self._after(fates, stale)

    def _after(self, fates: Iterable[Fate], stale: set[str]) -> None:
        self._settle(fates)
        if stale:
            self._cluster.forget_leaders(stale)
        self.look_soon()

    # -- fates ------------------------------------------------------------------------------------------------------

    def fail_all(self, error: Callable[[ProducerBatch], ClientError]) -> None:
        self._settle(self._sender.fail_all(error))

    def _settle(self, fates: Iterable[Fate]) -> None:
        """Whoever waits for these batches hears of it."""
        has_room = False
        for fate in fates:
            batch = fate.batch
            if self._on_batch is not None and not fate.parts:
                self._report(self._on_batch, fate)
            batch.let_go()
            has_room = True
            if fate.error is not None:
                link = self._links.last_error
                if batch.attempts == 0 and link is not None:
                    fate.error.add_note(f"the last connection that failed: {link}")
                if len(self._failures) < FAILURES_KEPT:
                    self._failures[batch] = fate.error
                else:
                    self._failures_uncounted += batch.count
                logger.warning("%d records for %s were not delivered: %s", batch.count, batch.tp, fate.error)
            if not batch.done.done():
                batch.done.set_result(fate)
        if has_room:
            self._settled()

    def _report(self, on_batch: BatchCallback, fate: Fate) -> None:
        batch = fate.batch
        size = batch.size if batch.encoded is None else len(batch.encoded)
        try:
            on_batch(BatchReport(batch.tp, batch.count, size, fate.base_offset, fate.error))
        except Exception:
            # Whoever waits for the batch must hear of it all the same.
            logger.exception("on_batch failed for a batch of %s", batch.tp)

    def raise_failures(self) -> None:
        """DeliveryFailedError if batches failed that nobody has asked about. Each is told of once."""
        unseen = [(batch, error) for batch, error in self._failures.items() if not batch.observed]
        uncounted, self._failures_uncounted = self._failures_uncounted, 0
        self._failures.clear()
        if not unseen:
            return
        count = sum(batch.count for batch, _ in unseen) + uncounted
        first = unseen[0][1]
        raise DeliveryFailedError(f"{count} records were not delivered; the first: {first}") from first

    # -- producer ids -----------------------------------------------------------------------------------------------

    def _ask_for_producer_id(self) -> None:
        if self._asking_id is None or self._asking_id.done():
            self._asking_id = asyncio.create_task(self._get_producer_id())

    async def _get_producer_id(self) -> None:
        async def ask() -> InitProducerIdResponse:
            response: InitProducerIdResponse = await self._cluster.request(
                ApiKey.INIT_PRODUCER_ID,
                InitProducerIdRequest(
                    transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
                ),
            )
            check(response.error_code, "asking for a producer id (enable.idempotence)")
            return response

        try:
            answer = await self._cluster.retrying(ask, timeout_ms=self._settings.delivery_timeout_ms)
        except ClientError as error:
            failure = error
            if not failure.retriable:
                failure.add_note("without one, enable.idempotence=false is the only way to write")
                self.fail_all(lambda batch: failure)
            logger.warning("no producer id: %s", failure)
        else:
            assert self._sequences is not None
            self._sequences.begin(answer.producer_id, answer.producer_epoch)
        self._asking_id = None
        self.look_soon()
