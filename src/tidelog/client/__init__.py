"""A client for Tidelog and for any other Kafka: a producer, a consumer, administration, and Arrow tables in and out.

    from tidelog.client import Admin, Consumer, Producer           # asyncio
    from tidelog.client.blocking import Admin, Consumer, Producer  # the same without await

The layers, bottom up: `connection` (one socket), `cluster` (who leads what, retries), then `producer/`, `consumer/`, `admin`, `groups` and `offsets`. Names are
imported when they are used: a command pays for what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tidelog.client.admin import Admin as Admin
    from tidelog.client.admin import NewTopic as NewTopic
    from tidelog.client.consumer.consumer import Consumer as Consumer
    from tidelog.client.consumer.records import ConsumerRecord as ConsumerRecord
    from tidelog.client.groups import Committed as Committed
    from tidelog.client.metadata import TopicPartition as TopicPartition
    from tidelog.client.producer.delivery import BatchReport as BatchReport
    from tidelog.client.producer.delivery import Delivery as Delivery
    from tidelog.client.producer.delivery import RecordMetadata as RecordMetadata
    from tidelog.client.producer.producer import Producer as Producer
    from tidelog.client.scanning import scan as scan
    from tidelog.client.settings import ConsumerSettings as ConsumerSettings
    from tidelog.client.settings import ProducerSettings as ProducerSettings

_WHERE: Final = {
    "Admin": "admin",
    "BatchReport": "producer.delivery",
    "Committed": "groups",
    "Consumer": "consumer.consumer",
    "ConsumerRecord": "consumer.records",
    "ConsumerSettings": "settings",
    "Delivery": "producer.delivery",
    "NewTopic": "admin",
    "Producer": "producer.producer",
    "ProducerSettings": "settings",
    "RecordMetadata": "producer.delivery",
    "TopicPartition": "metadata",
    "scan": "scanning",
}
__all__ = sorted(_WHERE)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
