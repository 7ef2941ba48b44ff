"""The controller's questions about settings, answered from the settings table.

The controller decides what a request would store; whether those values make sense is the business of `tidelog.config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidelog.config.alter import Alteration, AlterOp, alter_broker, alter_group, alter_topic
from tidelog.config.broker_settings import find
from tidelog.config.definition import ConfigType, Setting
from tidelog.config.describe import describe_topic
from tidelog.config.group_settings import GROUP_SETTINGS
from tidelog.config.resolve import BrokerConfig
from tidelog.config.topic_settings import TOPIC_SETTINGS
from tidelog.controller.image import ResourceType
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.create_topics import CreatableTopicConfigs


def _settings(configs: Mapping[str, str]) -> list[Alteration]:
    return [Alteration(name, AlterOp.SET, value) for name, value in configs.items()]


class TableConfigValidator:
    """Implements `tidelog.controller.result.ConfigValidator`."""

    def __init__(self, current: Callable[[], BrokerConfig]) -> None:
        self._current = current

    def validate_topic(self, topic: str, configs: Mapping[str, str]) -> None:
        alter_topic({}, _settings(configs), self._current())

    def validate_broker(
        self, broker_id: int | None, configs: Mapping[str, str], changed: frozenset[str]
    ) -> None:
        kept = {name: value for name, value in configs.items() if name not in changed}
        news = {name: value for name, value in configs.items() if name in changed}
        alter_broker(kept, _settings(news), self._current(), cluster_wide=broker_id is None)

    def validate_group(self, group: str, configs: Mapping[str, str]) -> None:
        alter_group({}, _settings(configs), self._current())

    def validate_client_metrics(self, subscription: str, configs: Mapping[str, str]) -> None:
        raise RequestError(ErrorCode.INVALID_REQUEST, "client metrics subscriptions are not served here")

    def list_default(self, resource_type: int, name: str) -> tuple[str, ...] | None:
        setting = _find(resource_type, name)
        if setting is None or setting.type is not ConfigType.LIST:
            return None
        return tuple(part for part in (setting.default_text or "").split(",") if part)

    def describe_topic(
        self, configs: Mapping[str, str], broker_defaults: Mapping[str, str]
    ) -> list[CreatableTopicConfigs]:
        broker = self._current().with_dynamic(default=broker_defaults)
        return [
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in describe_topic(configs, broker)
        ]


def _find(resource_type: int, name: str) -> Setting | None:
    if resource_type == ResourceType.TOPIC:
        return TOPIC_SETTINGS.get(name)
    if resource_type == ResourceType.BROKER:
        return find(name)
    if resource_type == ResourceType.GROUP:
        return GROUP_SETTINGS.get(name)
    return None
