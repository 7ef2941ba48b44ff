"""The words that hostile frames are made of: the fuzz dictionary of the project's reliability notes, one table per kind.

Facts only. What is a valid word and what a hostile one is decided by whoever uses them: many here are perfectly legal, and a
broker must take them as such.
"""

from __future__ import annotations

from typing import Final

INT_BITS: Final = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}


def edges(kind: str) -> tuple[int, ...]:
    """Around zero, and both ends of what fits."""
    bits = INT_BITS[kind]
    if kind.startswith("u"):
        return (0, 1, 2, (1 << bits) - 2, (1 << bits) - 1)
    half = 1 << (bits - 1)
    return (0, 1, 2, -1, -2, half - 2, half - 1, -half, -half + 1)


EDGES: Final = {kind: edges(kind) for kind in INT_BITS}

#: What a frame may claim to be long: the cap is Kafka's `socket.request.max.bytes`.
FRAME_CAP: Final = 104_857_600
FRAME_LENGTHS: Final = (-1, 0, 1, 2, 3, (1 << 31) - 1, -(1 << 31), FRAME_CAP - 1, FRAME_CAP, FRAME_CAP + 1)

LENGTHS_16: Final = (-1, -2, 0, 1, 0x7FFF, -0x8000, 255, 256)
LENGTHS_32: Final = (-1, -2, 0, 1, 2, (1 << 31) - 1, -(1 << 31), 1 << 30, 1 << 24, 65_535, 65_536)

#: Unsigned varints, as bytes: null, edges of 32 bits, 2^32, and encodings of more than five and ten bytes.
UVARINTS: Final = (
    b"\x00",
    b"\x01",
    b"\x02",
    b"\x7f",
    b"\x80\x01",
    b"\xff\x7f",
    b"\x80\x80\x01",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x10",
    b"\x80\x80\x80\x80\x00",
    b"\x80\x00",
    b"\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"\xff" * 10,
    b"\x80" * 12,
)

INVALID_UTF8: Final = (
    b"\xff",
    b"\xc3",
    b"\xc0\x80",
    b"\xed\xa0\x80",  # a surrogate
    b"\xf4\x90\x80\x80",  # above the last code point
    b"topic\x80",
    b"\xe2\x82",
)

TOPIC_NAMES: Final = (
    "",
    ".",
    "..",
    "...",
    "/",
    "a/b",
    "../../../../tmp/escaped",
    "..\\..\\escaped",
    "/etc/passwd",
    "a\x00b",
    "a\nb",
    "~",
    "$(id)",
    "%2e%2e%2f",
    "x" * 249,
    "x" * 250,
    "." * 249,
    "_" * 250,
    "ünïcode",
    "漢字",
    "e\u0301",
    "\u202egnp",
    "\ufeff",
    "😀" * 10,
    "__cluster_metadata",
    "__consumer_offsets",
    "__transaction_state",
    "fuzz-0-0",
    "fuzz-0.delete",
    "a.b",
    "a_b",
    " fuzz",
    "FUZZ-0",
)

#: Strings for any place: long runs of digits reach number parsers, braces and percent signs reach formatters.
STRINGS: Final = (
    "",
    "0",
    "-1",
    "9" * 5000,
    "1" * 400,
    "\x00",
    "a" * 128,
    "b" * 300,
    "c" * 16_384,
    "{}{0}{x!r}",
    "%s%d%n",
    "1e309",
    "nan",
    "٣",  # a digit that is not ASCII
    "½",
    "²",
    "true",
    "null",
    "a,b,,c,",
    ",".join("ab" for _ in range(300)),
    "key=value",
    "ä漢😀\u202e",
    "\ud7ff\ue000",
)

CONFIG_NAMES: Final = (
    "cleanup.policy",
    "compression.type",
    "compression.gzip.level",
    "compression.zstd.level",
    "delete.retention.ms",
    "durability",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.insync.replicas",
    "preallocate",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
    "no.such.setting",
    "",
)

#: Settings of a broker, without those whose hostile values it would rightly obey at everybody's cost (max.connections=0).
BROKER_CONFIG_NAMES: Final = (
    "background.threads",
    "compression.type",
    "log.cleaner.threads",
    "log.retention.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "max.connections.per.ip.overrides",
    "num.io.threads",
    "listeners",
    "advertised.listeners",
    "node.id",
    "no.such.setting",
    "",
)
LOGGER_NAMES: Final = ("tidelog", "tidelog.broker", "root", "no.such.logger", "")

CONFIG_VALUES: Final = (
    "-1",
    "0",
    "1",
    "1048576",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "9" * 5000,
    "0.5",
    "nan",
    "inf",
    "1e400",
    "true",
    "false",
    "delete",
    "compact",
    "compact,delete",
    "gzip",
    "snappy",
    "lz4",
    "zstd",
    "producer",
    "uncompressed",
    "CreateTime",
    "LogAppendTime",
    "fsync",
    "replicated",
    "",
    " 5 ",
    "٣",
    "½",
    "0:0,1:1",
    "*",
)

#: What a stranger's program sends first, when it takes the port for another service's.
FOREIGN_GREETINGS: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"\x15\x03\x01\x00\x02\x02\x28",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"EHLO example.org\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\x00" * 64,
    b"\xff" * 64,
    b"\r\n" * 32,
)
