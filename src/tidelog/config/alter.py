"""What AlterConfigs, IncrementalAlterConfigs and CreateTopics may do to stored settings.

Owns the judgement: given what is stored and what is asked for, the new set, or a RequestError with the code a Kafka
broker answers and a message that names setting, value and what is allowed. Pure: on an error nothing has changed,
because nothing ever changes here; the caller writes the result.

Kafka's codes, as recorded: INVALID_CONFIG for topics and groups, INVALID_REQUEST for brokers and for requests that are
malformed whatever the setting (a name twice, a null value).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidelog.config.broker_settings import BROKER_SETTINGS, find, listener_base
from tidelog.config.checks import topic_problems
from tidelog.config.definition import ConfigType, Scope, Setting, UpdateMode
from tidelog.config.errors import SettingError
from tidelog.config.group_settings import GROUP_SETTINGS
from tidelog.config.names import unknown
from tidelog.config.resolve import BrokerConfig, TopicConfig, refuse_unsupported
from tidelog.config.topic_settings import TOPIC_SETTINGS
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode


class AlterOp(IntEnum):
    """Operation of IncrementalAlterConfigs, by its number on the wire."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    name: str
    op: int
    value: str | None = None


def create_topic(configs: Iterable[tuple[str, str | None]], broker: BrokerConfig) -> dict[str, str]:
    """The overrides of a new topic."""
    changes = [Alteration(name, AlterOp.SET, value) for name, value in configs]
    for change in changes:
        if change.value is None:
            raise RequestError(ErrorCode.INVALID_CONFIG, _null(change.name))
    return alter_topic({}, changes, broker)


def alter_topic(
    current: Mapping[str, str], changes: Sequence[Alteration], broker: BrokerConfig
) -> dict[str, str]:
    """A topic's overrides after IncrementalAlterConfigs."""
    rules = _Rules(Scope.TOPIC, TOPIC_SETTINGS.get, ErrorCode.INVALID_CONFIG)
    altered = rules.apply(current, changes)
    problems = topic_problems(TopicConfig.resolve(altered, broker))
    if problems:
        raise RequestError(ErrorCode.INVALID_CONFIG, " ".join(problems))
    return altered


def replace_topic(configs: Iterable[tuple[str, str | None]], broker: BrokerConfig) -> dict[str, str]:
    """A topic's overrides after AlterConfigs, which replaces them all."""
    return alter_topic({}, [Alteration(name, AlterOp.SET, value) for name, value in configs], broker)


def alter_broker(
    current: Mapping[str, str], changes: Sequence[Alteration], broker: BrokerConfig, *, cluster_wide: bool
) -> dict[str, str]:
    """Dynamic broker settings after IncrementalAlterConfigs: one node's, or with `cluster_wide` everybody's."""
    for change in changes:
        if change.op != AlterOp.DELETE:  # what is not there may always be deleted
            _refuse_fixed(change, cluster_wide)
    altered = _Rules(Scope.BROKER, find, ErrorCode.INVALID_REQUEST).apply(current, changes)
    result = broker.with_dynamic(default=altered) if cluster_wide else broker.with_dynamic(node=altered)
    low, high = (result.int(f"log.cleaner.{end}.compaction.lag.ms") for end in ("min", "max"))
    if low > high:
        message = f"log.cleaner.min.compaction.lag.ms ({low}) must not be above log.cleaner.max.compaction.lag.ms ({high})"
        raise RequestError(ErrorCode.INVALID_REQUEST, message)
    return altered


def replace_broker(
    configs: Iterable[tuple[str, str | None]], broker: BrokerConfig, *, cluster_wide: bool
) -> dict[str, str]:
    """Dynamic broker settings after AlterConfigs, which replaces them all."""
    changes = [Alteration(name, AlterOp.SET, value) for name, value in configs]
    return alter_broker({}, changes, broker, cluster_wide=cluster_wide)


def alter_group(
    current: Mapping[str, str], changes: Sequence[Alteration], broker: BrokerConfig
) -> dict[str, str]:
    """A group's overrides after IncrementalAlterConfigs."""
    altered = _Rules(Scope.GROUP, GROUP_SETTINGS.get, ErrorCode.INVALID_CONFIG).apply(current, changes)
    for change in changes:
        if change.name in altered:
            _refuse_outside_bounds(change.name, altered[change.name], broker)
    for kind in ("consumer", "share", "streams"):
        _refuse_silence(kind, altered, broker)
    return altered


class _Rules(NamedTuple):
    """How one kind of resource reads a request."""

    scope: Scope
    lookup: Callable[[str], Setting | None]
    code: ErrorCode

    def apply(self, current: Mapping[str, str], changes: Sequence[Alteration]) -> dict[str, str]:
        for name, count in Counter(change.name for change in changes).items():
            if count > 1:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST, f"{name} is named more than once in the request."
                )
        altered = dict(current)
        for change in changes:
            self._apply(altered, change)
        return altered

    def _apply(self, altered: dict[str, str], change: Alteration) -> None:
        if change.op == AlterOp.DELETE:
            altered.pop(change.name, None)
            return
        if change.op not in (AlterOp.SET, AlterOp.APPEND, AlterOp.SUBTRACT):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"Unknown operation {change.op} for {change.name}.")
        if change.value is None:
            raise RequestError(ErrorCode.INVALID_REQUEST, _null(change.name))
        setting = self.lookup(change.name)
        if setting is None:
            raise RequestError(ErrorCode.INVALID_CONFIG, unknown(change.name, self.scope))
        text = change.value
        if change.op != AlterOp.SET:
            text = self._edited_list(setting, altered.get(change.name), change)
        try:
            refuse_unsupported(setting, text)
            altered[change.name] = setting.normalized(text)
        except SettingError as error:
            raise RequestError(self.code, str(error)) from None

    def _edited_list(self, setting: Setting, stored: str | None, change: Alteration) -> str:
        """A list with entries added or taken away; a setting that is not stored starts from the table's default."""
        op = AlterOp(change.op)
        if setting.type is not ConfigType.LIST:
            message = f"{op.name} works on lists; {change.name} is of type {setting.type.name}. Use SET."
            raise RequestError(ErrorCode.INVALID_CONFIG, message)
        items = _items(stored if stored is not None else setting.default_text)
        edits = dict.fromkeys(_items(change.value))
        if op is AlterOp.APPEND:
            return ",".join(dict.fromkeys(items) | edits)
        return ",".join(item for item in items if item not in edits)


def _items(text: str | None) -> list[str]:
    return [item for item in (part.strip() for part in (text or "").split(",")) if item]


def _null(name: str) -> str:
    return f"{name} cannot be null. Delete the setting to return to its default."


def _refuse_fixed(change: Alteration, cluster_wide: bool) -> None:
    """What a running broker cannot change, or not at this level."""
    setting = find(change.name)
    if setting is None:
        return
    base = listener_base(change.name)
    why = ""
    if setting.update is UpdateMode.READ_ONLY:
        why = "it is read when the broker starts; change server.properties and restart"
    elif setting.update is UpdateMode.PER_BROKER and cluster_wide:
        why = "it belongs to one broker; name the broker's id"
    elif setting.name.startswith("ssl.") and base is None and setting.name in DYNAMIC_TLS:
        why = f"it can only be changed for one listener, as listener.name.<listener>.{change.name}"
    if why:
        raise RequestError(ErrorCode.INVALID_REQUEST, f"{change.name} cannot be changed here: {why}.")


DYNAMIC_TLS = frozenset(
    name
    for name, setting in BROKER_SETTINGS.items()
    if name.startswith(("ssl.keystore.", "ssl.truststore.", "ssl.key."))
    and setting.update is UpdateMode.PER_BROKER
)


def _refuse_outside_bounds(name: str, text: str, broker: BrokerConfig) -> None:
    """A group may choose within the bounds that the broker sets (group.consumer.min.… and group.consumer.max.…)."""
    kind, _, rest = name.partition(".")
    rest = rest.removeprefix("num.")  # the bound of streams.num.standby.replicas has no num
    low, high = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
    value = GROUP_SETTINGS[name].parse(text)
    if not isinstance(value, int):
        return
    if low in broker and value < broker.int(low):
        raise RequestError(ErrorCode.INVALID_CONFIG, f"{name} cannot be {value}: {low} is {broker.int(low)}")
    if high in broker and value > broker.int(high):
        raise RequestError(
            ErrorCode.INVALID_CONFIG, f"{name} cannot be {value}: {high} is {broker.int(high)}"
        )


def _refuse_silence(kind: str, altered: Mapping[str, str], broker: BrokerConfig) -> None:
    """Members that send a heartbeat less often than they may be silent would time out again and again."""
    values: list[int] = []
    for what in ("heartbeat.interval.ms", "session.timeout.ms"):
        text = altered.get(f"{kind}.{what}")
        values.append(broker.int(f"group.{kind}.{what}") if text is None else int(text))
    heartbeat, session = values
    if heartbeat >= session:
        raise RequestError(
            ErrorCode.INVALID_CONFIG,
            f"{kind}.session.timeout.ms ({session}) must be above {kind}.heartbeat.interval.ms ({heartbeat})",
        )
