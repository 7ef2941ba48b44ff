"""What clients of the simulated partition ask and are told: no more than the promises are about. Brokers speak Kafka's messages among each other."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.wire.error_codes import ErrorCode


class Produce(NamedTuple):
    records: bytes
    acks_all: bool


class Produced(NamedTuple):
    error: ErrorCode
    offset: int = -1
    leader_epoch: int = -1


class Read(NamedTuple):
    offset: int


class ReadAnswer(NamedTuple):
    error: ErrorCode
    records: bytes = b""
    high_watermark: int = -1
    leader_epoch: int = -1


class Latest(NamedTuple):
    pass


class LatestAnswer(NamedTuple):
    error: ErrorCode
    offset: int = -1
    leader_epoch: int = -1


class WhoLeads(NamedTuple):
    pass


class Leads(NamedTuple):
    leader: int
