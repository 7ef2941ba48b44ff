"""What the group coordinator is configured to, in one value; a group may have its own heartbeat and session times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

DEFAULT_HEARTBEAT_INTERVAL_MS: Final = 5000


class MigrationPolicy(Enum):
    """Which moves between the protocols a live group may make (`group.consumer.migration.policy`)."""

    DISABLED = "disabled"
    DOWNGRADE = "downgrade"
    UPGRADE = "upgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Kafka's names and defaults; milliseconds unless they say otherwise."""

    # classic groups
    initial_rebalance_delay_ms: int = 3000
    join_gather_ms: int = 0
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    # consumer groups
    assignors: tuple[str, ...] = ("uniform", "range")
    consumer_heartbeat_interval_ms: int = DEFAULT_HEARTBEAT_INTERVAL_MS
    consumer_session_timeout_ms: int = 45_000
    consumer_assignment_interval_ms: int = 1000
    consumer_max_size: int = 2**31 - 1
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    consumer_regex_refresh_interval_ms: int = 600_000
    # offsets
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_interval_ms: int = 600_000


class ConsumerTimes:
    """The times of one consumer group: its own settings (`kafka-configs --entity-type groups`) before the broker's."""

    __slots__ = ("assignment_interval_ms", "heartbeat_interval_ms", "may_hurry", "session_timeout_ms")

    def __init__(self, settings: GroupSettings, own: Mapping[str, int]) -> None:
        self.may_hurry = (
            "consumer.heartbeat.interval.ms" not in own
            and settings.consumer_heartbeat_interval_ms == DEFAULT_HEARTBEAT_INTERVAL_MS
        )
        """Nobody has chosen an interval: members may be asked to come sooner while there is a reason."""
        self.heartbeat_interval_ms = own.get(
            "consumer.heartbeat.interval.ms", settings.consumer_heartbeat_interval_ms
        )
        self.session_timeout_ms = own.get("consumer.session.timeout.ms", settings.consumer_session_timeout_ms)
        self.assignment_interval_ms = own.get(
            "consumer.assignment.interval.ms", settings.consumer_assignment_interval_ms
        )
