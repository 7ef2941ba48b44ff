"""Where a stream is: the next offset of every partition, and which topic and leader those offsets are from.

As JSON it looks like that of Spark's own Kafka source, `{"orders": {"0": 33, "1": 20}}`, so that whoever reads checkpoints can read ours. What that one lacks stands
under a name that no topic can have: `"#": {"ids": {"orders": "…"}, "epochs": {"orders": {"0": 5}}, "begins": {"orders": {"1": 12}}}`. The id tells a topic that was made
anew from the one that was read; the leader epoch tells a log that was cut from one that grew; and where a batch began, if not at the end of the last one, makes a batch that
is run again the same batch. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.client.metadata import TopicPartition

MARKS: Final = "#"
NO_EPOCH: Final = -1


class OffsetsError(ValueError):
    """Text that is no offsets."""


@dataclass(frozen=True, slots=True)
class Offsets:
    next: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """In hexadecimal; none for topics of brokers that have no ids, and in checkpoints of others."""
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of a leader whose log went at least up to the next offset, where it is known."""
    begins: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Where the batch that ends here began, of partitions that it did not begin at the end of the one before: new ones, and those with losses."""

    def __contains__(self, tp: object) -> bool:
        return tp in self.next

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(tp.topic for tp in self.next)

    def with_next(self, offsets: Mapping[TopicPartition, int]) -> Offsets:
        """Other positions in the same logs; epochs of partitions that have moved are not known any more."""
        kept = {tp: epoch for tp, epoch in self.epochs.items() if offsets.get(tp) == self.next.get(tp)}
        return Offsets(dict(offsets), self.topic_ids, kept)

    def unknown_since(self, start: Offsets) -> set[TopicPartition]:
        """New partitions of which this does not say where they begin: another source wrote it."""
        return self.next.keys() - start.next.keys() - self.begins.keys()

    def since(
        self, start: Offsets, earliest: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The batch between two offsets of a stream: what it reads of each partition, as [from, to). `earliest` is for those that are unknown."""
        known = {**(earliest or {}), **start.next, **self.begins}
        return {tp: (known.get(tp, 0), offset) for tp, offset in self.next.items()}

    def to_json(self) -> dict[str, Any]:
        """What Spark writes into its checkpoint: nested dictionaries of strings and numbers, in order."""
        document: dict[str, Any] = _by_topic(self.next)
        marks: dict[str, Any] = {}
        if ids := {topic: self.topic_ids[topic] for topic in sorted(self.topics & self.topic_ids.keys())}:
            marks["ids"] = ids
        if epochs := _by_topic({tp: epoch for tp, epoch in self.epochs.items() if epoch != NO_EPOCH}):
            marks["epochs"] = epochs
        if begins := _by_topic(self.begins):
            marks["begins"] = begins
        if marks:
            document[MARKS] = marks
        return document

    @classmethod
    def from_json(cls, document: str | Mapping[str, Any]) -> Offsets:
        """Of ours, or of Spark's Kafka source. OffsetsError says what it should look like."""
        found = parse_document(document)
        marks = found.pop(MARKS, {})
        if not isinstance(marks, dict):
            raise OffsetsError(f"{MARKS!r} holds {marks!r} where topic ids and epochs belong")
        ids = {str(topic): str(each) for topic, each in marks.get("ids", {}).items()}
        return cls(
            parse_offsets(found),
            ids,
            parse_offsets(marks.get("epochs", {})),
            parse_offsets(marks.get("begins", {})),
        )


def parse_document(document: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(document, str):
        return dict(document)
    try:
        found = json.loads(document)
    except json.JSONDecodeError as error:
        raise OffsetsError(f"{document!r} is no JSON ({error}){_EXAMPLE}") from None
    if not isinstance(found, dict):
        raise OffsetsError(f"{document!r} is no JSON object{_EXAMPLE}")
    return found


def parse_offsets(document: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """`{"topic": {"partition": number}}` by partition."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, Mapping):
            raise OffsetsError(f"topic {topic!r} has {partitions!r} where partitions belong{_EXAMPLE}")
        for number, offset in partitions.items():
            if not str(number).isdecimal() or isinstance(offset, bool) or not isinstance(offset, int):
                raise OffsetsError(f"topic {topic!r} has {number!r}: {offset!r}{_EXAMPLE}")
            found[TopicPartition(topic, int(number))] = offset
    return found


def parse_assignment(text: str) -> frozenset[TopicPartition]:
    """`{"topic": [0, 2]}`."""
    found: set[TopicPartition] = set()
    for topic, numbers in parse_document(text).items():
        if not isinstance(numbers, list) or not all(
            type(number) is int and number >= 0 for number in numbers
        ):
            raise OffsetsError(
                f'topic {topic!r} has {numbers!r} where a list of partitions belongs, as in {{"orders": [0, 2]}}'
            )
        found.update(TopicPartition(topic, number) for number in numbers)
    return frozenset(found)


_EXAMPLE: Final = '; it should look like {"orders": {"0": 23, "1": -1}}'


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for tp in sorted(values):
        document.setdefault(tp.topic, {})[str(tp.partition)] = values[tp]
    return document


def names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"
