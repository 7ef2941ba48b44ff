"""File, environment and command line say the same things, and the later one wins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config import (
    BrokerConfig,
    ConfigError,
    combine,
    from_assignments,
    from_environment,
    from_properties,
)
from tidelog.config.broker_settings import BROKER_SETTINGS
from tidelog.config.sources import environment_name


@given(st.sampled_from(sorted(BROKER_SETTINGS)), st.text())
def test_every_setting_has_its_variable(name: str, value: str) -> None:
    given_ = from_environment({environment_name(name): value, "HOME": "/home/x"})
    assert given_.values == {name: value}


def test_an_unknown_variable_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        from_environment({"TIDELOG_LOG_RETENTOIN_MS": "1", "TIDELOG_NUM_PARTITIONS": "3"})
    assert "TIDELOG_LOG_RETENTOIN_MS" in str(caught.value)
    assert "TIDELOG_LOG_RETENTION_MS" in str(caught.value)


def test_variables_of_other_purposes_can_be_named() -> None:
    assert from_environment({"TIDELOG_TRACE": "1"}, ignore=["TIDELOG_TRACE"]).values == {}


def test_assignments() -> None:
    assert from_assignments(["a.b=c=d", " x =1"]).values == {"a.b": "c=d", "x": "1"}
    with pytest.raises(ConfigError, match="'nonsense' is not of the form name=value"):
        from_assignments(["nonsense"])


def test_the_later_source_wins_also_under_another_name() -> None:
    file = from_properties("log.retention.ms=1000\nlog.dirs=/a,/b\nnode.id=3\nnum.partitions=2")
    line = from_assignments(["log.retention.hours=2", "log.dir=/c", "broker.id=4"])
    combined = combine(file, from_environment({"TIDELOG_NUM_PARTITIONS": "5"}), line)
    assert combined.values == {
        "log.retention.hours": "2",
        "log.dir": "/c",
        "broker.id": "4",
        "num.partitions": "5",
    }
    config = BrokerConfig.load(combined.values, source=combined.origins)
    assert (config.node_id, config.log_dirs, config.int("num.partitions")) == (4, ("/c",), 5)


def test_errors_say_where_the_setting_was_given() -> None:
    combined = combine(
        from_properties("# ours\nnum.partitions=many", file="my.properties"),
        from_environment({"TIDELOG_LOG_SEGMENT_BYTES": "7"}),
        from_assignments(["log.retention.mss=1"]),
    )
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load(combined.values, source=combined.origins)
    first, second, third = caught.value.problems
    assert first.startswith("my.properties, line 2: num.partitions cannot be 'many'")
    assert second.startswith(
        "environment variable TIDELOG_LOG_SEGMENT_BYTES: log.segment.bytes cannot be '7'"
    )
    assert third.startswith("--set log.retention.mss: Unknown broker setting") and "log.retention.ms" in third


def test_a_broken_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"my\.properties, line 1"):
        from_properties("a=\\u1", file="my.properties")
