"""Settings with which records may be lost, or writes stop, said in the log of the broker that has decided on them, whichever client asked.

The command line tells its user the same (`config/footguns.py`); every other client is told nothing, so the log is where an operator finds it. Never refuses anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.broker.limited_log import LimitedLog
from tidelog.config.footguns import default_warnings, replica_warnings
from tidelog.config.resolve import TopicConfig
from tidelog.controller.image import ResourceType
from tidelog.internal_topics import is_internal_topic

if TYPE_CHECKING:
    from tidelog.broker.node import Broker

log = LimitedLog(logging.getLogger("tidelog.broker"), lines_per_second=10)


def warn_of_topics(broker: Broker, names: Iterable[str]) -> None:
    """Topics that were just made or changed."""
    image = broker.image
    for name in names:
        topic = image.topic(name)
        if topic is None or is_internal_topic(name):
            continue
        sentences = replica_warnings(
            TopicConfig.resolve(image.config(ResourceType.TOPIC, name), broker.config),
            replication_factor=max((len(p.replicas) for p in topic.partitions.values()), default=1),
            brokers=len(image.brokers),
        )
        for sentence in sentences:
            log.warning("topic %s: %s", name, sentence)


def warn_of_settings(broker: Broker, resource_type: int, name: str) -> None:
    """Settings of a topic, a broker or all brokers that were just changed."""
    if resource_type == ResourceType.TOPIC:
        warn_of_topics(broker, [name])
    elif resource_type == ResourceType.BROKER:
        image = broker.image
        whose = f"broker {name}" if name else "all brokers"
        for sentence in default_warnings(image.config(resource_type, name), brokers=len(image.brokers)):
            log.warning("settings of %s: %s", whose, sentence)
