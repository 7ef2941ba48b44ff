"""The bug zoo of replication (RELIABILITY §10): each mutant is a mistake that somebody has made, in Kafka or on paper.

Product functions are replaced from outside while a mutant is applied (`tidelog.testing.mutants`); the replication simulation must find every
one of them, with the same seeds that it runs clean without.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Final

from tidelog.replication import isr, watermark
from tidelog.replication.fetcher import Fetcher
from tidelog.replication.isr import Isr
from tidelog.replication.leader import Leader
from tidelog.replication.partition import Partition
from tidelog.replication.replica_state import RemoteReplica
from tidelog.storage import log_append
from tidelog.storage.epoch_cache import LeaderEpochCache
from tidelog.storage.log import Log
from tidelog.storage.producer_state import ProducerState
from tidelog.testing.mutants import Mutant, attribute, function


def _cuts_to_the_watermark(original: Any) -> Any:
    def follow(self: Partition, assignment: Any) -> None:
        original(self, assignment)
        self.log.truncate_to(self.log.high_watermark)

    return follow


def _answers_with_the_epoch_asked_for(original: Any) -> Any:
    """KIP-101 before KIP-279: the start of the next epoch, whatever epoch was there before it."""

    def end_offset_for(self: LeaderEpochCache, epoch: int, log_end_offset: int) -> tuple[int, int]:
        if epoch < 0:
            return -1, -1
        if epoch == self._latest:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        return (epoch, self._starts[higher]) if higher < len(self._epochs) else (-1, -1)

    return end_offset_for


def _nothing(original: Any) -> Any:
    return lambda *args, **options: None


def _true(original: Any) -> Any:
    return lambda *args, **options: True


def _counts_the_committed_only(original: Any) -> Any:
    return lambda committed, proposed: frozenset(committed)


def _joins_by_the_watermark(original: Any) -> Any:
    def may_join(replica: Any, brokers: Any, *, high_watermark: int, epoch_start_offset: int) -> bool:
        return bool(original(replica, brokers, high_watermark=high_watermark, epoch_start_offset=0))

    return may_join


def _remembers_earlier_epochs(original: Any) -> Any:
    """A leader begins with what it knew of its followers when it led before."""
    known_of: dict[int, dict[int, RemoteReplica]] = {}
    kept: list[Log] = []

    def init(self: Leader, broker_id: int, log: Log, *args: Any, **options: Any) -> None:
        original(self, broker_id, log, *args, **options)
        known = known_of.get(id(log), {})
        for other, replica in self.remotes.items():
            if other in known:
                replica.log_end_offset = known[other].log_end_offset
                replica.broker_epoch = known[other].broker_epoch
        known_of[id(log)] = self.remotes
        kept.append(log)  # so that its id is not given to another

    return init


def _never_below(original: Any) -> Any:
    def committed_end(own_end: int, of: Isr, remotes: Any) -> int:
        below, of.below_min = of.below_min, False
        try:
            return int(original(own_end, of, remotes))
        finally:
            of.below_min = below

    return committed_end


def _forgets_producers(original: Any) -> Any:
    def append_run(log: Log, *args: Any) -> None:
        original(log, *args)
        log.producers = ProducerState()
        log.producers.end_offset = log.log_end_offset

    return append_run


def _counts_what_is_written(original: Any) -> Any:
    return lambda log, *, durable: log.log_end_offset


def _any_fetch_counts(original: Any) -> Any:
    def fetched(self: RemoteReplica, offset: int, **options: Any) -> None:
        original(self, offset, **options)
        self.caught_up_at = options["now"]

    return fetched


MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant("M1", "a new follower cuts its log at its high watermark", (attribute(Partition, "_follow", _cuts_to_the_watermark),)),
    Mutant("M2", "an epoch that the leader does not know ends where the next one begins", (
        attribute(LeaderEpochCache, "end_offset_for", _answers_with_the_epoch_asked_for),)),
    Mutant("M3", "a follower of another epoch is served and counted", (attribute(Partition, "_check_replica_epoch", _nothing),)),
    Mutant("M4", "an answer to a question of an earlier epoch cuts and fills the log", (attribute(Fetcher, "_is_current", _true),)),
    Mutant("M5", "the watermark counts the committed ISR only", (function(isr.maximal_isr, _counts_the_committed_only),)),
    Mutant("M6", "who has reached the watermark may join", (function(isr.may_join, _joins_by_the_watermark),)),
    Mutant("M7", "what a follower had in an earlier epoch counts", (attribute(Leader, "__init__", _remembers_earlier_epochs),)),
    Mutant("M10", "the watermark moves below min.insync.replicas", (function(watermark.committed_end, _never_below),)),
    Mutant("M20", "followers do not remember producers", (function(log_append._append_run, _forgets_producers),)),
    Mutant("M27", "a follower does not check CRCs", (attribute(log_append, "crc_matches", _true),)),
    Mutant("M30", "a new leader tells its watermark at once", (attribute(Leader, "is_settled", _true),)),
    Mutant("M33", "what is written counts before it is synced", (function(watermark.counted_end, _counts_what_is_written),)),
    Mutant("M34", "who fetches is in sync", (attribute(RemoteReplica, "fetched", _any_fetch_counts),)),
)  # fmt: skip


def mutant(name: str) -> Mutant:
    return next(known for known in MUTANTS if known.name == name)
