"""librdkafka without Python between the records: what a program in C would get out of it.

The library is the one that the confluent-kafka package brings along. Its Python binding takes twice the time per small record that the
library itself does, and on a machine of two cores that hides the broker. Owns nothing but the few calls that `bench.load` needs;
settings, copying of payloads and acknowledgements are as in the binding. Objects live as long as their process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import confluent_kafka.cimpl

PRODUCER, CONSUMER = 0, 1
COPY, BLOCK = 2, 4
"""Message flags: the library copies the payload; the call waits while the library's queue is full."""
TEXT_BYTES = 512

Settings = Mapping[str, object]


class LibraryError(Exception):
    """librdkafka refused something; carries its own words."""


class _Message(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


def _load() -> ctypes.CDLL:
    # The binding's own file is linked with the library, so its symbols are found through it.
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    pointer, text, number, offset = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
    partition = ctypes.c_int32
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, ()),
        ("rd_kafka_conf_set", number, (pointer, text, text, text, ctypes.c_size_t)),
        ("rd_kafka_new", pointer, (number, pointer, text, ctypes.c_size_t)),
        ("rd_kafka_topic_new", pointer, (pointer, text, pointer)),
        ("rd_kafka_metadata", number, (pointer, number, pointer, ctypes.POINTER(pointer), number)),
        ("rd_kafka_produce_batch", number, (pointer, partition, number, pointer, number)),
        ("rd_kafka_flush", number, (pointer, number)),
        ("rd_kafka_outq_len", number, (pointer,)),
        ("rd_kafka_queue_new", pointer, (pointer,)),
        ("rd_kafka_consume_start_queue", number, (pointer, partition, offset, pointer)),
        ("rd_kafka_consume_callback_queue", number, (pointer, number, pointer, pointer)),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


class _Client:
    def __init__(self, kind: int, settings: Settings, topic: str) -> None:
        self._library = _load()
        said = ctypes.create_string_buffer(TEXT_BYTES)
        configuration = self._library.rd_kafka_conf_new()
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self._library.rd_kafka_conf_set(configuration, name.encode(), text.encode(), said, TEXT_BYTES):
                raise LibraryError(said.value.decode())
        self._handle = self._library.rd_kafka_new(kind, configuration, said, TEXT_BYTES)
        if not self._handle:
            raise LibraryError(said.value.decode())
        self._topic = self._library.rd_kafka_topic_new(self._handle, topic.encode(), None)

    def connect(self, timeout_seconds: float) -> None:
        """Wait until the broker has told about the topic."""
        found = ctypes.c_void_p()
        error = self._library.rd_kafka_metadata(
            self._handle, 0, self._topic, ctypes.byref(found), int(timeout_seconds * 1000)
        )
        if error:
            raise LibraryError(f"no metadata within {timeout_seconds} s: error {error}")


class BareProducer(_Client):
    """A producer for one topic that sends the same values over and over."""

    def __init__(self, settings: Settings, topic: str, values: list[bytes]) -> None:
        super().__init__(PRODUCER, settings, topic)
        self._messages = (_Message * len(values))()
        for message, value in zip(self._messages, values, strict=True):
            message.payload = value
            message.size = len(value)

    def produce(self, partition: int) -> int:
        """Hand all values to the library, waiting for room in its queue; returns how many it took."""
        taken: int = self._library.rd_kafka_produce_batch(
            self._topic, partition, COPY | BLOCK, self._messages, len(self._messages)
        )
        return taken

    def flush(self, timeout_seconds: float) -> int:
        """Wait until everything is acknowledged; returns how many records are not."""
        self._library.rd_kafka_flush(self._handle, int(timeout_seconds * 1000))
        left: int = self._library.rd_kafka_outq_len(self._handle)
        return left


class BareConsumer(_Client):
    """A consumer of all partitions of one topic, from their beginning, that counts records and drops them."""

    def __init__(self, settings: Settings, topic: str, partitions: int) -> None:
        super().__init__(CONSUMER, settings, topic)
        self._partitions = partitions
        self._queue = self._library.rd_kafka_queue_new(self._handle)
        # The library calls a function for each record and frees the record afterwards. This one, of the C library, takes a word
        # and gives it back: the least that can be done with a record.
        self._do_nothing = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p)

    def start(self) -> None:
        for number in range(self._partitions):
            if self._library.rd_kafka_consume_start_queue(self._topic, number, 0, self._queue):
                raise LibraryError(f"partition {number} cannot be consumed")

    def consume(self, timeout_seconds: float) -> int:
        """How many records were there; waits when there are none."""
        count: int = self._library.rd_kafka_consume_callback_queue(
            self._queue, int(timeout_seconds * 1000), self._do_nothing, None
        )
        if count < 0:
            raise LibraryError("consuming failed")
        return count
