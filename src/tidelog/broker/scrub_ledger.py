"""Which segments are known to be damaged: kept from readers, told once, and remembered across restarts.

A segment's own `damage` is what readers go by; this is the list of those segments, and the `scrub-checkpoint` of each log directory that brings
it back (`storage/scrub_round` has its format). It forgets segments that retention or a deletion took. Nothing here looks for damage.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import CorruptDataError
from tidelog.storage import files
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import DiskError, read_file, write_file_atomically
from tidelog.storage.log import Log
from tidelog.storage.recovery_report import Damage
from tidelog.storage.scrub_round import Round, Target, find_log
from tidelog.storage.segment import Segment

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

logger = logging.getLogger("tidelog.broker")

LINES_PER_SEGMENT = 20


class DamageLedger:
    def __init__(self, broker: Broker, rounds: Sequence[Round]) -> None:
        self._broker = broker
        self._rounds = tuple(rounds)
        self._damaged: dict[tuple[TopicPartition, int], Segment] = {}
        self._told: set[Damage] = set()
        self.suspects: deque[tuple[TopicPartition, int]] = deque()
        """Partition and base offset of what the last run found: looked at first, it may have been restored."""
        self.unsaved: set[str] = set()
        """Log directories whose checkpoint is behind."""
        self.has_news = False
        """A change that should be saved at once, not with the next position of the round."""

    def known(self) -> Iterator[tuple[TopicPartition, int, Damage]]:
        """Every damage of a segment that is still there, with its partition and the segment's base offset."""
        for (key, base_offset), segment in list(self._damaged.items()):
            log = find_log(self._broker.logs, key)
            if log is None or log.segments[log.segment_number(base_offset)] is not segment:
                del self._damaged[key, base_offset]  # deleted by retention, or with its topic
                continue
            for damage in segment.damage or ():
                yield key, base_offset, damage

    def note(self, target: Target, damages: tuple[Damage, ...]) -> None:
        """What a check of the segment found, if anything."""
        segment = target.segment
        if segment.damage != (damages or None):
            segment.damage = damages or None
            target.log.positions.clear()  # a length that lies may have led to them
            self.unsaved.add(files.parent(target.log.directory))
            self.has_news = True
        if damages:
            self._damaged[target.key, target.facts.base_offset] = segment
            self._tell(target, damages)
        elif self._damaged.pop((target.key, target.facts.base_offset), None) is not None:
            logger.info("%s is sound again: every batch of it can be read", segment.file.path)

    def _tell(self, target: Target, damages: tuple[Damage, ...]) -> None:
        new = [damage for damage in damages if damage not in self._told]
        self._told.update(new)
        for damage in new[:LINES_PER_SEGMENT]:
            logger.error(
                "%s: %s. It was sound when it was written. Fetches of these offsets are answered with CORRUPT_MESSAGE; those"
                " before and from offset %d on are served as ever, and no data was changed. Stop the broker and restore the file"
                " from a replica or a backup, or let consumers seek to offset %d. `tidelog log verify %s` shows the details.",
                target.log.name, damage, damage.end_offset, damage.end_offset, target.log.directory,
            )  # fmt: skip
        if len(new) > LINES_PER_SEGMENT:
            logger.error(
                "%s: %d more damages in %s",
                target.log.name, len(new) - LINES_PER_SEGMENT, target.segment.file.path,
            )  # fmt: skip

    # ---- across restarts

    async def load(self) -> list[tuple[TopicPartition, Log]]:
        """Take up what earlier runs and this start's recovery found. Returns the logs whose active segment was damaged once."""
        in_doubt: list[tuple[TopicPartition, Log]] = []
        for each in self._rounds:
            for (key, base_offset), damages in (await self._read(each)).items():
                log = find_log(self._broker.logs, key)
                segment = log.segments[log.segment_number(base_offset)] if log is not None else None
                if log is None or segment is None or segment.base_offset != base_offset:
                    continue
                if segment is log.active:
                    in_doubt.append((key, log))
                    continue
                fitting = tuple(damage for damage in damages if damage.end_position <= segment.size)
                segment.damage = fitting or None
                self._damaged[key, base_offset] = segment
                self.suspects.append((key, base_offset))
        for key, log in self._broker.logs.logs.items():
            # What recovery found is in the segments already; but the next start may be a clean one and not see it.
            if log.recovery.damages:
                for segment in log.segments:
                    if segment.damage is not None:
                        self._damaged[key, segment.base_offset] = segment
                        self.unsaved.add(files.parent(log.directory))
                        self.has_news = True
        return in_doubt

    async def _read(self, each: Round) -> dict[tuple[TopicPartition, int], tuple[Damage, ...]]:
        path = files.join(each.log_dir, files.SCRUB_CHECKPOINT)
        try:
            text = await self._broker.in_background(lambda: read_file(self._broker.disk, path))
            return each.load(text, path)
        except FileNotFoundError:
            return {}
        except DiskError as error:
            self._broker.partitions.dir_failed(each.log_dir, error)
            return {}
        except CorruptDataError as error:
            logger.warning("%s", error)
            return {}

    async def save(self) -> None:
        self.has_news = False
        known = list(self.known())
        offline = self._broker.logs.offline_dirs
        for each in self._rounds:
            if each.log_dir not in self.unsaved or each.log_dir in offline:
                continue
            mine = [entry for entry in known if self._is_in(each.log_dir, entry[0])]
            path, text = files.join(each.log_dir, files.SCRUB_CHECKPOINT), each.encoded(mine)
            try:
                await self._broker.in_background(
                    partial(write_file_atomically, self._broker.disk, path, text)
                )
            except DiskError as error:
                if not error.out_of_space:
                    self._broker.partitions.dir_failed(each.log_dir, error)
                continue  # when there is space again
            self.unsaved.discard(each.log_dir)

    def _is_in(self, log_dir: str, key: TopicPartition) -> bool:
        log = find_log(self._broker.logs, key)
        return log is not None and files.parent(log.directory) == log_dir
