"""Every group setting of Kafka 4.3 by name. The rows stand in `tidelog.config.tables.group`."""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables import group

GROUP_SETTINGS: dict[str, Setting] = {row.name: row for row in group.SETTINGS}
