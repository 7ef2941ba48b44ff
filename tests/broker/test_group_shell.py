"""The shell around the coordinator: what the log's refusals mean to it, and loading that goes on whatever one partition does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.conftest import OwnBroker
from tests.broker.group_wire import await_coordinators, commit, committed_offset, new_id
from tidelog.broker.group_journal import PartitionJournal
from tidelog.coordinator.group import refusals
from tidelog.coordinator.group.records import OffsetCommitKey
from tidelog.coordinator.outcome import CoordinatorRecord, Now
from tidelog.coordinator.runtime_load import Load
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E

RECORDS = [CoordinatorRecord(OffsetCommitKey("g", "t", 0), None)]


class FullPartition:
    stopped_with: E | None = None

    def append(self, *_: Any, **__: Any) -> Any:
        raise RequestError(E.KAFKA_STORAGE_ERROR, "no room")


@pytest.mark.parametrize(
    ("stopped_with", "told"),
    [(None, E.COORDINATOR_NOT_AVAILABLE), (E.KAFKA_STORAGE_ERROR, E.KAFKA_STORAGE_ERROR)],
    ids=["full", "offline"],
)
def test_a_full_disk_is_not_a_broken_one(stopped_with: E | None, told: E) -> None:
    partition: Any = FullPartition()
    partition.stopped_with = stopped_with
    broker: Any = None
    with pytest.raises(RequestError) as refused:
        PartitionJournal(broker, partition).append(RECORDS, Now(0, 0))
    assert refused.value.code == told


def test_a_heartbeat_of_a_group_that_is_being_loaded_is_no_error() -> None:
    assert refusals.heartbeat(E.COORDINATOR_LOAD_IN_PROGRESS, "").error_code == E.NONE
    assert refusals.heartbeat(E.NOT_COORDINATOR, "").error_code == E.NOT_COORDINATOR


def test_groups_are_loaded_though_nothing_can_be_read_ahead(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warm(_journal: PartitionJournal) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(PartitionJournal, "warm", warm)
    broker: OwnBroker = launch()
    await_coordinators(broker.port)


def test_one_partition_that_cannot_be_loaded_at_first_holds_up_no_other(
    launch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([ValueError("closed")])
    step = Load.step

    def fails_once(self: Any) -> bool:
        for failure in failures:
            raise failure
        return step(self)

    monkeypatch.setattr(Load, "step", fails_once)
    broker: OwnBroker = launch()
    await_coordinators(broker.port)
    wire = broker.connect()
    topic = wire.create("t")
    group = new_id()
    assert commit(wire, group, topic, 5) == "NONE"
    assert committed_offset(wire, group, topic, 0) == 5
