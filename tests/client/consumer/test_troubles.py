"""Which errors still concern the application when it asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.client.consumer.positions import EARLIEST, Positions, Spot, Want
from tidelog.client.consumer.troubles import Troubles
from tidelog.client.errors import ClientError, LogTruncatedError, NoOffsetError
from tidelog.client.metadata import TopicPartition

TP = TopicPartition("t", 0)


@pytest.fixture
def positions() -> Positions:
    positions = Positions(bytes_ahead=1_000)
    positions.assign([TP])
    return positions


def test_errors_come_in_their_order_and_once(positions: Positions) -> None:
    troubles = Troubles(positions)
    assert not troubles
    for text in ("one", "two", "one"):
        troubles.append(ClientError(text))
    assert [str(troubles.popleft()) for _ in range(2)] == ["one", "two"]
    assert not troubles
    with pytest.raises(IndexError):
        troubles.popleft()
    troubles.append(ClientError("one"))
    assert troubles, "it is news again once it was told"


def given_up_and_taken_again(positions: Positions) -> None:
    positions.remove([TP])
    positions.add([TP])


@pytest.mark.parametrize(
    "go",
    [
        lambda positions: positions.states[TP].move_to(Spot(7)),
        lambda positions: positions.states[TP].wants(Want.RESET, reset_to=EARLIEST),
        lambda positions: positions.remove([TP]),
        given_up_and_taken_again,
    ],
)
@pytest.mark.parametrize("error", [NoOffsetError("none", TP, None), LogTruncatedError("cut", TP, 5)])
def test_who_has_gone_elsewhere_has_dealt_with_it(
    positions: Positions, error: ClientError, go: Callable[[Positions], None]
) -> None:
    troubles = Troubles(positions)
    troubles.append(error)
    go(positions)
    assert not troubles


def test_who_stands_where_it_happened_is_told(positions: Positions) -> None:
    troubles, error = Troubles(positions), NoOffsetError("none", TP, None)
    troubles.append(error)
    troubles.append(ClientError("of all partitions"))
    assert troubles.popleft() is error
    positions.states[TP].move_to(Spot(1))
    assert str(troubles.popleft()) == "of all partitions"
