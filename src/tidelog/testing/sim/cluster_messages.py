"""What clients of a simulated cluster ask its brokers and are told: no more than the promises are about. Groups and brokers speak Kafka's messages."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidelog.controller.image import MetadataImage
from tidelog.wire.error_codes import ErrorCode


class Produce(NamedTuple):
    topic: str
    partition: int
    records: bytes
    acks_all: bool


class Produced(NamedTuple):
    error: ErrorCode
    offset: int = -1
    leader_epoch: int = -1


class Read(NamedTuple):
    """As a consumer's fetch of one partition: it waits for more at its end."""

    topic: str
    partition: int
    offset: int
    wait_ms: int
    from_follower: bool = False


class ReadAnswer(NamedTuple):
    error: ErrorCode
    records: bytes = b""
    high_watermark: int = -1
    leader_epoch: int = -1


class Latest(NamedTuple):
    topic: str
    partition: int


class LatestAnswer(NamedTuple):
    error: ErrorCode
    offset: int = -1
    leader_epoch: int = -1


class AskMetadata(NamedTuple):
    pass


class Metadata(NamedTuple):
    image: MetadataImage


class InitProducer(NamedTuple):
    pass


class ProducerIds(NamedTuple):
    error: ErrorCode
    first: int = -1
    size: int = 0


class Admin(NamedTuple):
    """A request that any broker sends on to the controller."""

    request: Any
