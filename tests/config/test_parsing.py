"""Text becomes values by Kafka's rules, and what is refused is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config.broker_settings import BROKER_SETTINGS
from tidelog.config.definition import Value
from tidelog.config.errors import SettingError
from tidelog.config.topic_settings import TOPIC_SETTINGS
from tidelog.config.values import TypedValues


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " 77 ", 77),
        ("retention.ms", "+5", 5),
        ("retention.ms", "-1", -1),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", "compact , delete", ("compact", "delete")),
        ("cleanup.policy", "compact,compact", ("compact",)),
        ("cleanup.policy", "", ()),
        ("min.cleanable.dirty.ratio", "1e-1", 0.1),
        ("compression.gzip.level", "-1", -1),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
        ("retention.bytes", "-5", -5),
    ],
)
def test_accepted_as_kafka_accepts_it(name: str, text: str, value: Value) -> None:
    assert TOPIC_SETTINGS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("retention.ms", "abc", "at least -1"),
        ("retention.ms", "", "at least -1"),
        ("retention.ms", "1_000", "LONG"),
        ("retention.ms", "١", "LONG"),
        ("retention.ms", "-7", "at least -1"),
        ("retention.ms", "9223372036854775808", "LONG"),
        ("max.message.bytes", "2147483648", "INT"),
        ("segment.bytes", "100", "at least 1048576"),
        ("preallocate", "yes", "true or false"),
        ("cleanup.policy", "shrink", "compact, delete"),
        ("cleanup.policy", "compact,,delete", "empty entry"),
        ("compression.type", "", "uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "1 to 9, or -1"),
        ("min.cleanable.dirty.ratio", "1.5", "0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "0 to 1"),
        ("min.cleanable.dirty.ratio", "1_0", "0 to 1"),
        ("leader.replication.throttled.replicas", "zz", "partition:broker"),
        ("durability", "maybe", "fsync, replicated"),
    ],
)
def test_a_refusal_names_setting_value_and_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(SettingError) as caught:
        TOPIC_SETTINGS[name].parse(text)
    message = str(caught.value)
    assert name in message and repr(text) in message and allowed in message


def test_a_secret_is_never_shown() -> None:
    error = BROKER_SETTINGS["ssl.keystore.password"].error("hunter2", "it is too short")
    assert "hunter2" not in str(error) and "ssl.keystore.password" in str(error)


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_long_survives_text(value: int) -> None:
    row = TOPIC_SETTINGS["retention.bytes"]
    assert row.parse(row.format(value) or "") == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_survives_text(value: float) -> None:
    row = BROKER_SETTINGS["log.cleaner.io.max.bytes.per.second"]
    assert row.parse(row.format(value) or "") == value


def test_a_getter_of_the_wrong_type_is_a_bug_that_shows() -> None:
    values = TypedValues({"a": 1, "b": None, "c": ("x",), "d": "text", "e": True, "f": 0.5})
    assert (values.int("a"), values.optional_int("b"), values.list("c"), values.str("d")) == (
        1,
        None,
        ("x",),
        "text",
    )
    assert (values.bool("e"), values.float("f"), values.list("b"), values.optional_str("b")) == (
        True,
        0.5,
        (),
        None,
    )
    for getter, name in (
        (values.int, "d"),
        (values.bool, "a"),
        (values.str, "c"),
        (values.list, "d"),
        (values.float, "d"),
    ):
        with pytest.raises(TypeError, match=name):
            getter(name)
    with pytest.raises(KeyError):
        values.int("no.such")
