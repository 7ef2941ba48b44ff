"""The small text files beside the logs: offset checkpoints, leader epochs, partition and directory identity, the clean-stop marker.

Owns their formats, which are Kafka's, and nothing of what they mean. Every file is written whole, atomically and durably
(`write_file_atomically`), and read strictly: anything unexpected is a CorruptDataError that names file and line, so that a damaged
file is never half believed (I6). A file that is not there reads as None. Formats: docs/formats/checkpoints.md.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, NoReturn

from tidelog.errors import CorruptDataError
from tidelog.storage.disk import Disk, read_file, write_file_atomically
from tidelog.storage.epoch_cache import EpochEntry
from tidelog.storage.files import is_topic_name

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_VERSION: Final = 0

TopicPartition = tuple[str, int]


class MetaProperties(NamedTuple):
    """Whose log directory this is. `directory_id` is 16 bytes (KIP-858), None in directories formatted without one."""

    cluster_id: str
    node_id: int
    directory_id: bytes | None


# -- offset checkpoints -----------------------------------------------------------------------------------------------


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return _encode_lines(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def decode_offsets(data: bytes, path: str) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for number, line in _decode_lines(data, path):
        words = line.split()
        if len(words) != 3 or not is_topic_name(words[0]):
            _refuse(path, number, line, "topic, partition and offset")
        key = (words[0], _integer(words[1], path, number, line))
        if key[1] < 0 or key in offsets:
            _refuse(path, number, line, "each partition once")
        offsets[key] = _integer(words[2], path, number, line)
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    write_file_atomically(disk, path, encode_offsets(offsets))


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int] | None:
    data = _read(disk, path)
    return None if data is None else decode_offsets(data, path)


# -- leader epochs ----------------------------------------------------------------------------------------------------


def encode_epochs(entries: Iterable[EpochEntry]) -> bytes:
    return _encode_lines(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def decode_epochs(data: bytes, path: str) -> list[EpochEntry]:
    entries: list[EpochEntry] = []
    for number, line in _decode_lines(data, path):
        words = line.split()
        if len(words) != 2:
            _refuse(path, number, line, "leader epoch and start offset")
        entry = EpochEntry(*(_integer(word, path, number, line) for word in words))
        if min(entry) < 0 or (entries and (entry.epoch <= entries[-1].epoch or entry[1] < entries[-1][1])):
            _refuse(path, number, line, "epochs and offsets that rise")
        entries.append(entry)
    return entries


def write_epochs(disk: Disk, path: str, entries: Iterable[EpochEntry]) -> None:
    write_file_atomically(disk, path, encode_epochs(entries))


def read_epochs(disk: Disk, path: str) -> list[EpochEntry] | None:
    data = _read(disk, path)
    return None if data is None else decode_epochs(data, path)


# -- partition.metadata -----------------------------------------------------------------------------------------------


def encode_uuid(value: bytes) -> str:
    """Kafka's text form of a 16-byte id: base64 with the URL alphabet, without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def decode_uuid(text: str) -> bytes:
    """ValueError unless the text is exactly what `encode_uuid` makes of 16 bytes."""
    try:
        value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not base64 of 16 bytes: {error}") from None
    if len(value) != 16 or encode_uuid(value) != text:
        raise ValueError(f"{text!r} is not base64 of 16 bytes")
    return value


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: {_VERSION}\ntopic_id: {encode_uuid(topic_id)}".encode()


def decode_partition_metadata(data: bytes, path: str) -> bytes:
    lines = _text(data, path).splitlines()
    if not lines or lines[0].split() != ["version:", str(_VERSION)]:
        _refuse(path, 1, lines[0] if lines else "", f"version: {_VERSION}")
    words = lines[1].split() if len(lines) == 2 else []
    if len(words) != 2 or words[0] != "topic_id:":
        _refuse(path, 2, "\n".join(lines[1:]), "one line topic_id: <id>")
    try:
        topic_id = decode_uuid(words[1])
    except ValueError:
        _refuse(path, 2, lines[1], "a topic id")
    if topic_id == bytes(16):
        _refuse(path, 2, lines[1], "a topic id other than zero")
    return topic_id


def write_partition_metadata(disk: Disk, path: str, topic_id: bytes) -> None:
    """Not atomic, and not durable before the log's first flush (`log_flush`): until then a power cut may leave half of it."""
    if len(topic_id) != 16 or topic_id == bytes(16):
        raise ValueError(f"{topic_id.hex()} is not a topic id")
    file = disk.open(path, create=True)
    try:
        if file.size():
            file.truncate(0)
        file.write_at((encode_partition_metadata(topic_id),), 0)
    finally:
        file.close()


def read_partition_metadata(disk: Disk, path: str, *, may_be_unfinished: bool = False) -> bytes | None:
    """None also for half a file where that `may_be`: nothing in the partition was made durable before the whole."""
    data = _read(disk, path)
    if data is None or (may_be_unfinished and _is_unfinished_metadata(data)):
        return None
    return decode_partition_metadata(data, path)


def _is_unfinished_metadata(data: bytes) -> bool:
    """Only the beginning of a right file, or zeroes in its place: what a power cut leaves of a write, unlike any other damage."""
    written = data.rstrip(b"\0")
    complete = encode_partition_metadata(bytes(16))
    shared = min(len(written), len(complete) - 22)
    return len(written) < len(complete) and written[:shared] == complete[:shared]


# -- meta.properties --------------------------------------------------------------------------------------------------


def encode_meta_properties(meta: MetaProperties) -> bytes:
    lines = ["#", f"cluster.id={meta.cluster_id}"]
    if meta.directory_id is not None:
        lines.append(f"directory.id={encode_uuid(meta.directory_id)}")
    return "\n".join([*lines, f"node.id={meta.node_id}", "version=1", ""]).encode()


def decode_meta_properties(data: bytes, path: str) -> MetaProperties:
    """Version 1 (KRaft); other keys are ignored, as Kafka does."""
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(_text(data, path).splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, separator, value = text.partition("=")
        if not separator:
            _refuse(path, number, line, "key=value")
        # Java escapes ':' and '=' in values it writes; nothing else in these values needs it.
        found[key.strip()] = (number, re.sub(r"\\(.)", r"\1", value.strip()))
    for key in ("version", "cluster.id", "node.id"):
        if not found.get(key, (0, ""))[1]:
            _refuse(path, len(found) + 1, "", f"a line {key}=…")
    number, version = found["version"]
    if version != "1":
        _refuse(path, number, f"version={version}", "version=1")
    number, node_id = found["node.id"]
    number_of_id, directory_id = found.get("directory.id", (0, ""))
    try:
        directory = decode_uuid(directory_id) if directory_id else None
    except ValueError:
        _refuse(path, number_of_id, directory_id, "a directory id")
    return MetaProperties(found["cluster.id"][1], _integer(node_id, path, number, node_id), directory)


def write_meta_properties(disk: Disk, path: str, meta: MetaProperties) -> None:
    write_file_atomically(disk, path, encode_meta_properties(meta))


def read_meta_properties(disk: Disk, path: str) -> MetaProperties | None:
    data = _read(disk, path)
    return None if data is None else decode_meta_properties(data, path)


# -- clean shutdown marker --------------------------------------------------------------------------------------------


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps({"version": _VERSION, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes, path: str) -> int:
    """The epoch of the broker that stopped cleanly; -1 for the empty marker of older Kafka."""
    text = _text(data, path)
    if not text.strip():
        return -1
    try:
        content = json.loads(text)
    except ValueError:
        _refuse(path, 1, text, "a JSON object")
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    if type(epoch) is not int or content.get("version") != _VERSION:
        _refuse(path, 1, text, f"version {_VERSION} and a brokerEpoch")
    return epoch


def write_clean_shutdown(disk: Disk, path: str, broker_epoch: int) -> None:
    write_file_atomically(disk, path, encode_clean_shutdown(broker_epoch))


def read_clean_shutdown(disk: Disk, path: str) -> int | None:
    """None: the last stop was not clean. A damaged marker is CorruptDataError; treat it as not clean."""
    data = _read(disk, path)
    return None if data is None else decode_clean_shutdown(data, path)


# -- lines ------------------------------------------------------------------------------------------------------------


def _encode_lines(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def _decode_lines(data: bytes, path: str) -> list[tuple[int, str]]:
    """The numbered entry lines of a checkpoint, whose version and count are checked here."""
    if not data:
        return []  # Kafka leaves such a file where nothing was checkpointed yet
    lines = _text(data, path).splitlines()
    if not data.endswith(b"\n"):
        # Of a leader epoch checkpoint, which is not synced at once, a power cut may leave the beginning: 6 1 of 6 19.
        _refuse(path, len(lines), lines[-1], "a line that is not cut off")
    for number, what in ((1, f"version {_VERSION}"), (2, "the number of entries")):
        if len(lines) < number:
            _refuse(path, number, "", what)
    if _integer(lines[0], path, 1, lines[0]) != _VERSION:
        _refuse(path, 1, lines[0], f"version {_VERSION}")
    count = _integer(lines[1], path, 2, lines[1])
    if count != len(lines) - 2:
        _refuse(path, 2, lines[1], f"the number of lines that follow, {len(lines) - 2}")
    return list(enumerate(lines[2:], 3))


def _integer(word: str, path: str, number: int, line: str) -> int:
    if _INTEGER.fullmatch(word) is None:
        _refuse(path, number, line, "a number")
    return int(word)


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(
            f"{path} is not text: byte {error.start} is {data[error.start]:#04x}"
        ) from None


def _refuse(path: str, number: int, line: str, expected: str) -> NoReturn:
    raise CorruptDataError(f"{path} line {number}: expected {expected}, found {line[:120]!r}")


def _read(disk: Disk, path: str) -> bytes | None:
    try:
        return read_file(disk, path)
    except FileNotFoundError:
        return None
