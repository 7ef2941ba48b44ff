"""Runs scenario files: sentences about brokers that lead, follow and fall behind, on the product's partitions and real logs.

No network and no chance: each sentence happens at once, in order. A sentence that nobody knows is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

from tidelog.errors import RequestError
from tidelog.records.batch import iter_headers
from tidelog.records.builder import BatchBuilder
from tidelog.records.validation import BatchRules
from tidelog.replication.assignment import Assignment
from tidelog.replication.isr import IsrAnswer, Proposal
from tidelog.replication.leader import ReplicaFetch, ReplicationSettings
from tidelog.replication.partition import Partition
from tidelog.storage.log_config import LogConfig
from tidelog.storage.recovery import open_log
from tidelog.testing.sim.disk import SimDisk
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.fetch import EpochEndOffset, PartitionData

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))


class ScenarioWorld:
    def __init__(self) -> None:
        self.now = 100.0
        self.partitions: dict[int, Partition] = {}
        self.leader_id = -1
        self.partition_epoch = 0
        self.proposals: list[Proposal] = []
        self.answers: list[ErrorCode] = []
        self.refused: ErrorCode | None = None

    # ---- ports

    def propose(self, partition: Partition, proposal: Proposal, /) -> None:
        self.proposals.append(proposal)

    def request(self, partition: Partition, /) -> None:
        ticket = partition.log.begin_flush()
        if ticket is not None:
            ticket.run()
            partition.flushed(ticket)

    # ---- reading a file

    def run(self, text: str) -> int:
        """Every line that is not empty or a comment; returns how many."""
        done = 0
        for number, line in enumerate(text.splitlines(), 1):
            sentence = line.partition("#")[0].strip()
            if not sentence:
                continue
            try:
                self._say(sentence)
            except Exception as error:
                error.add_note(f"line {number}: {sentence}")
                raise
            done += 1
        return done

    def _say(self, sentence: str) -> None:
        for pattern, method in _SENTENCES:
            match = pattern.fullmatch(sentence)
            if match is not None:
                method(self, *match.groups())
                return
        raise ValueError(f"nobody knows what this means: {sentence}")

    # ---- what happens

    def cluster(self, brokers: str, min_isr: str, lag_ms: str) -> None:
        settings = ReplicationSettings(
            broker_epoch=lambda: 1, lag_seconds_max=int(lag_ms) / 1000, proposals=self
        )
        for broker_id in range(1, int(brokers) + 1):
            log = open_log(
                SimDisk(Random(broker_id)),
                "/data/t-0",
                "t",
                0,
                config=LogConfig(),
                now_ms=NOW_MS,
                topic_id=TOPIC_ID,
            )
            self.partitions[broker_id] = Partition(
                "t", 0, TOPIC_ID, log, broker_id=broker_id, rules=BatchRules(), durable=False, flush_queue=self,
                min_isr=int(min_isr), settings=settings,
            )  # fmt: skip

    def leads(self, broker: str, epoch: str, in_sync: str) -> None:
        self.partition_epoch += 1
        before, self.leader_id = self.leader_id, int(broker)
        assignment = Assignment(
            self.leader_id, int(epoch), self.partition_epoch, tuple(self.partitions), _numbers(in_sync)
        )
        for broker_id, partition in self.partitions.items():
            if broker_id != before:  # the one that led before is gone, and hears of nothing
                partition.assign(assignment, now=self.now)
        self.assignment = assignment

    def returns(self, broker: str, records: str) -> None:
        partition = self.partitions[int(broker)]
        for _ in range(int(records)):
            partition.append(_batch(), now_ms=NOW_MS, produce_version=13, acks_all=False)
        partition.assign(self.assignment, now=self.now)

    def writes(self, records: str, acks_all: str | None) -> None:
        self.refused = None
        self.answers = []
        for _ in range(int(records)):
            try:
                result = self.leader.append(
                    _batch(), now_ms=NOW_MS, produce_version=13, acks_all=acks_all is not None
                )
            except RequestError as error:
                self.refused = error.code
                return
            self.leader.when_committed(result.last_offset, self.answers.append)

    def replicates(self, broker: str, offset: str) -> None:
        """Fetch after fetch until the log ends there, and one more that says so."""
        follower = self.partitions[int(broker)]
        for _ in range(200):
            data = self._fetch(follower, int(offset))
            assert follower.follower is not None
            if (
                follower.log.log_end_offset == int(offset)
                and not data.records
                and data.diverging_epoch.epoch < 0
            ):
                return
            follower.apply_fetched(follower.follower, data, now_ms=NOW_MS)
        raise AssertionError(
            f"broker {broker} does not get to {offset}, it is at {follower.log.log_end_offset}"
        )

    def asks_again(self, broker: str) -> None:
        self._fetch(self.partitions[int(broker)], 0)

    def _fetch(self, follower: Partition, stop_at: int) -> PartitionData:
        """As a leader answers, with no record at or above `stop_at`."""
        assert follower.follower is not None
        offset, last_epoch, log_start = follower.follower.position()
        fetch = ReplicaFetch(follower.broker_id, 1, follower.leader_epoch, offset, last_epoch, log_start)
        leader, log = self.leader, self.leader.log
        diverging = leader.check_replica_fetch(fetch)
        if diverging is not None:
            return PartitionData(diverging_epoch=EpochEndOffset(*diverging))
        leader.replica_fetched(fetch, now=self.now)
        data = PartitionData(high_watermark=log.high_watermark, log_start_offset=0)
        found = log.read(offset, 1 << 20, end_offset=log.log_end_offset)
        if found.range is not None:
            records = found.range.read()
            found.range.release()
            sizes = [header.size for _, header in iter_headers(records) if header.last_offset < stop_at]
            data.records = records[: sum(sizes)]
        return data

    def passes(self, seconds: str) -> None:
        self.now += float(seconds)

    def leader_looks(self) -> None:
        self.leader.check_isr(now=self.now)

    def agrees(self) -> None:
        proposal = self.proposals.pop()
        self.partition_epoch += 1
        answer = IsrAnswer(ErrorCode.NONE, proposal.leader_epoch, self.partition_epoch, proposal.broker_ids)
        self.leader.isr_answered(proposal, answer, now=self.now)

    # ---- what is expected

    @property
    def leader(self) -> Partition:
        return self.partitions[self.leader_id]

    def expect_ends(self, ends: str) -> None:
        found = [str(partition.log.log_end_offset) for partition in self.partitions.values()]
        wanted = ends.split()
        assert [end if want != "-" else "-" for end, want in zip(found, wanted, strict=True)] == wanted

    def expect_watermark(self, offset: str) -> None:
        assert self.leader.log.high_watermark == int(offset)

    def expect_held_by(self, who: str) -> None:
        assert self.leader.leader is not None
        standings = self.leader.leader.standings(own_end=self.leader.log.log_end_offset, now=self.now)
        holding = [str(standing.broker_id) for standing in standings if standing.holds_watermark]
        assert (holding or ["nobody"]) == who.split()

    def expect_last_readable(self, offset: str) -> None:
        assert self.leader.visible_end(committed_only=False) - 1 == int(offset)

    def expect_reads(self, records: str) -> None:
        log = self.leader.log
        found = log.read(0, 1 << 20, end_offset=self.leader.visible_end(committed_only=False))
        assert found.range is not None
        headers = list(iter_headers(found.range.read()))
        found.range.release()
        assert len(headers) == int(records)

    def expect_in_sync(self, brokers: str) -> None:
        assert self.leader.leader is not None
        assert self.leader.leader.isr.committed == _numbers(brokers)

    def expect_proposed(self, brokers: str) -> None:
        assert [proposal.broker_ids for proposal in self.proposals] == [_numbers(brokers)]

    def expect_acknowledged(self) -> None:
        assert self.answers == [ErrorCode.NONE]

    def expect_not_acknowledged(self) -> None:
        assert self.answers == []

    def expect_refused(self, code: str) -> None:
        assert self.refused == ErrorCode[code]

    def expect_latest(self, offset: str) -> None:
        self.leader.check_latest()
        assert self.leader.visible_end(committed_only=False) == int(offset)

    def expect_latest_unknown(self) -> None:
        try:
            self.leader.check_latest()
        except RequestError as error:
            assert error.code == ErrorCode.OFFSET_NOT_AVAILABLE
        else:
            raise AssertionError("the leader tells its watermark")

    def expect_epochs(self, broker: str, epochs: str) -> None:
        entries = self.partitions[int(broker)].log.epochs.checkpoint_entries()
        assert " ".join(f"{entry.epoch}@{entry.start_offset}" for entry in entries) == epochs

    def expect_same_logs(self) -> None:
        contents = []
        for partition in self.partitions.values():
            found = partition.log.read(0, 1 << 20, end_offset=partition.log.log_end_offset)
            assert found.range is not None
            contents.append(found.range.read())
            found.range.release()
        assert all(content == contents[0] for content in contents)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


_written = 0


def _batch() -> bytes:
    global _written
    _written += 1
    builder = BatchBuilder()
    builder.append(NOW_MS, None, f"record {_written}".encode())
    return builder.build()


_SENTENCES: list[tuple[re.Pattern[str], Callable[..., None]]] = [
    (re.compile(pattern), method)
    for pattern, method in (
        (
            r"cluster of (\d+), min\.insync\.replicas (\d+), replica\.lag\.time\.max\.ms (\d+)",
            ScenarioWorld.cluster,
        ),
        (r"broker (\d+) leads in epoch (\d+), in sync ([\d ]+)", ScenarioWorld.leads),
        (r"broker (\d+) returns with (\d+) records? more", ScenarioWorld.returns),
        (r"producer writes (\d+) records?( with acks=all)?", ScenarioWorld.writes),
        (r"broker (\d+) replicates up to (\d+)", ScenarioWorld.replicates),
        (r"broker (\d+) asks again", ScenarioWorld.asks_again),
        (r"(\d+) seconds pass", ScenarioWorld.passes),
        (r"leader looks at its followers", ScenarioWorld.leader_looks),
        (r"controller agrees", ScenarioWorld.agrees),
        (r"expect log ends ([\d -]+)", ScenarioWorld.expect_ends),
        (r"expect high watermark (\d+)", ScenarioWorld.expect_watermark),
        (r"expect watermark held by (nobody|[\d ]+)", ScenarioWorld.expect_held_by),
        (r"expect last readable offset (\d+)", ScenarioWorld.expect_last_readable),
        (r"expect consumer reads (\d+) records", ScenarioWorld.expect_reads),
        (r"expect in sync ([\d ]+)", ScenarioWorld.expect_in_sync),
        (r"expect proposed ([\d ]+)", ScenarioWorld.expect_proposed),
        (r"expect acknowledged", ScenarioWorld.expect_acknowledged),
        (r"expect not acknowledged", ScenarioWorld.expect_not_acknowledged),
        (r"expect refused (\w+)", ScenarioWorld.expect_refused),
        (r"expect latest offset (\d+)", ScenarioWorld.expect_latest),
        (r"expect latest offset not known", ScenarioWorld.expect_latest_unknown),
        (r"expect epochs of (\d+): ([\d@ ]+)", ScenarioWorld.expect_epochs),
        (r"expect same logs", ScenarioWorld.expect_same_logs),
    )
]
