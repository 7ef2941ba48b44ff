"""What a broker says of its past when it registers: the epoch whose places it claims, or nothing (D10, I23)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidelog.broker.registration import registration
from tidelog.config.resolve import BrokerConfig
from tidelog.controller.image import BrokerImage, MetadataImage
from tidelog.storage.log_manager import LogManager
from tidelog.storage.run_ledger import Registered

DISK, OTHER = b"d" * 16, b"e" * 16
RUN = b"r" * 16


class Ledger:
    """Of a run that was registered with epoch 7."""

    def __init__(self, loss: str | None = None) -> None:
        self.loss = loss

    def previous_epoch(self, known: Registered | None) -> int:
        return 7


def logs(**changes: Any) -> LogManager:
    found = {
        "cluster_id": "c",
        "ledger": Ledger(),
        "offline_dirs": {},
        "directory_ids": {"/a": DISK},
    }
    return cast(LogManager, SimpleNamespace(**(found | changes)))


def broker(broker_id: int, epoch: int, *log_dirs: bytes) -> BrokerImage:
    return BrokerImage(broker_id, epoch, RUN, (), {}, None, False, False, log_dirs or (DISK,))


def claimed(manager: LogManager, *brokers: BrokerImage, **properties: str) -> int:
    config = BrokerConfig.load({"node.id": "0", **properties})
    image = MetadataImage(brokers={each.broker_id: each for each in brokers})
    request = registration(image, manager, config, incarnation_id=b"i" * 16, endpoints=())
    return request.previous_broker_epoch


def test_the_epoch_that_the_ledger_knows_however_old_the_metadata_is() -> None:
    assert claimed(logs(), broker(0, 7), broker(1, 8)) == 7
    assert claimed(logs(), broker(0, 3), broker(1, 8)) == 7
    assert claimed(logs(), broker(1, 8)) == 7


@pytest.mark.parametrize(
    ("manager", "known"),
    [
        (logs(ledger=Ledger("records")), broker(0, 7)),
        (logs(offline_dirs={"/b": OSError()}), broker(0, 7)),
        (logs(), broker(0, 7, DISK, OTHER)),
        (logs(directory_ids={"/a": OTHER}), broker(0, 7)),
    ],
    ids=["a loss", "a directory that fails", "a directory that is gone", "a new directory"],
)
def test_nothing_is_claimed_after(manager: LogManager, known: BrokerImage) -> None:
    assert claimed(manager, known, broker(1, 8)) == -1
    # Not by the only controller of several brokers either: the others may hold what it has lost.
    assert claimed(manager, known, broker(1, 8), **{"controller.quorum.voters": "0@localhost:9093"}) == -1


def test_the_only_broker_there_is_claims_its_epoch_whatever_it_lost() -> None:
    assert claimed(logs(ledger=Ledger("records")), broker(0, 7)) == 7
    assert claimed(logs(), broker(0, 3)) == 3
