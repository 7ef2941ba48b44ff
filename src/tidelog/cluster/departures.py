"""Which brokers have left a moment ago, so that clients are still told where they were.

A fenced broker is in no list of brokers, as with Kafka. But a client that hears in one answer that a broker is gone and that its partitions are led elsewhere may do both at once: librdkafka
(2.10 and later) ends what it has for the broker before it has taken the partitions away from there, and then they belong to nobody until it looks around a second later. Kafka lists a dead broker until its session
ends, nine seconds, and clients know that nobody answers there: what they have for it is taken away in order. So whoever left is named a while longer (`TOLD_FOR_S`).

Not who has only become silent (a paused process, a machine without power): clients wait for answers of such a broker until they give up, and sooner when it is in the list no more.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from tidelog.cluster.missing_nodes import MissingNodes
from tidelog.controller.image import BrokerImage, MetadataImage
from tidelog.ports import Clock

TOLD_FOR_S: Final = 10.0


class Departures:
    def __init__(self, missing: MissingNodes, *, clock: Clock) -> None:
        self._missing = missing
        self._clock = clock
        self._there: set[int] = set()
        self._left_at: dict[int, float] = {}

    def changed(self, brokers: Set[int], image: MetadataImage, *, is_news: bool) -> None:
        """These brokers are different in the image. `is_news`: it happened just now."""
        for broker_id in brokers:
            broker = image.brokers.get(broker_id)
            if broker is not None and not broker.fenced:
                self._there.add(broker_id)
                self._left_at.pop(broker_id, None)
            elif broker_id in self._there:
                self._there.discard(broker_id)
                if broker is not None and is_news:
                    self._left_at[broker_id] = self._clock.monotonic()
                    if not broker.in_controlled_shutdown:
                        self._missing.fenced(broker_id)  # this node may have had no connection to it

    def is_told(self, broker: BrokerImage) -> bool:
        """Whether clients hear of a broker that is fenced."""
        left_at = self._left_at.get(broker.broker_id)
        if left_at is None:
            return False
        if self._clock.monotonic() - left_at >= TOLD_FOR_S:
            del self._left_at[broker.broker_id]
            return False
        return broker.in_controlled_shutdown or self._missing.may_be_closed(broker.broker_id)


StillTold = Callable[[BrokerImage], bool]


def nobody(_broker: BrokerImage) -> bool:
    """`Departures.is_told` where nobody leaves."""
    return False
