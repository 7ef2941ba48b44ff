"""The producer of `tidelog produce`: one topic, whole batches, a little ahead of the broker, and quick to end when something goes wrong.

With acks=all retries neither duplicate nor reorder. Otherwise there are no numbers by which a broker could tell, so one request at a time is on its way: a retry after
a lost connection may duplicate, but not reorder.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final

from tidelog.cli.boundary import our_name
from tidelog.client.errors import ClientError
from tidelog.client.partitioner import partition_for_key
from tidelog.client.producer.delivery import BatchCallback
from tidelog.client.producer.producer import Producer

ACKS_ALL: Final = -1
BATCH_BYTES: Final = 256 * 1024
AHEAD_BYTES: Final = 8 * 1024 * 1024
"""Of lines that were read and are not acknowledged: with a slow broker the rest stays in the pipe, and the first failure ends the command soon."""
RECORD_BYTES_MAX: Final = 100 * 1024 * 1024
"""What brokers take in one request. Which records are too large is theirs to say."""
_RECORD_OVERHEAD: Final = 24


class InTurn:
    """Which partition: a key's, as in every Kafka client; without one, one after the other, so that a short input spreads evenly."""

    def __init__(self) -> None:
        self._turn = 0
        self._bytes = 0

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        if key is not None:
            return partition_for_key(key, count)
        chosen = self._turn % count
        self._bytes += len(value or b"") + _RECORD_OVERHEAD
        if self._bytes >= BATCH_BYTES:
            self.next()
        return chosen

    def next(self) -> None:
        """What the partition has got goes out now: if that is anything, it is another one's turn."""
        if self._bytes:
            self._turn, self._bytes = self._turn + 1, 0


class LineProducer:
    def __init__(
        self, bootstrap_servers: str, topic: str, *, acks: int, compression: str, on_batch: BatchCallback
    ) -> None:
        self._turns = InTurn()
        self._ahead_bytes = 0
        self._producer = Producer(
            bootstrap_servers,
            acks=acks,
            enable_idempotence=acks == ACKS_ALL,
            max_in_flight_requests_per_connection=5 if acks == ACKS_ALL else 1,
            compression_type=compression,
            batch_size=BATCH_BYTES,
            linger_ms=1_000,  # a pause of the input ends a batch earlier
            max_request_size=RECORD_BYTES_MAX,
            buffer_memory=RECORD_BYTES_MAX + AHEAD_BYTES,
            partitioner=self._turns,
            on_batch=on_batch,
            **our_name(),
        )
        self.send = partial(self._producer.send, topic)
        """`Producer.send`, without a call in between: it is called for every line."""

    async def __aenter__(self) -> LineProducer:
        await self._producer.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._producer.close()
        else:
            with suppress(ClientError):  # what is not delivered now is not, and `error` says why
                await self._producer.close(timeout_ms=0)

    async def sent(self, size_bytes: int) -> None:
        """So many bytes of lines, since the last call. Waits when that is too far ahead."""
        self._ahead_bytes += size_bytes
        if self._ahead_bytes >= AHEAD_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Everything sent so far is acknowledged when this returns. DeliveryFailedError if something was not."""
        self._ahead_bytes = 0
        await self._producer.flush()
        self._turns.next()
