"""Every topic setting of Kafka 4.3, and Tidelog's own, by name. The rows stand in `tidelog.config.tables.topic`."""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables import topic

TOPIC_SETTINGS: dict[str, Setting] = {row.name: row for row in topic.SETTINGS}
