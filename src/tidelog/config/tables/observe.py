"""Metrics and quotas.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import CLASS, CLUSTER_WIDE, INT, LIST, LONG, REFUSED, STRING
from tidelog.config.validators import at_least

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), None, "Java classes that publish metrics.", update=CLUSTER_WIDE),
    Setting("metrics.num.samples", INT, 2, at_least(1), "Samples a metric is computed from."),
    Setting("metrics.recording.level", STRING, "INFO", None, "How detailed metrics are."),
    Setting("metrics.sample.window.ms", LONG, 30_000, at_least(1), "Length of one sample."),
    Setting("kafka.metrics.reporters", LIST, (), None, "Java classes that publish the older kind of metrics."),
    Setting("kafka.metrics.polling.interval.secs", INT, 10, at_least(1), "How often the older kind of metrics is published."),
    Setting("quota.window.num", INT, 11, at_least(1), "Windows over which client quotas are measured."),
    Setting("quota.window.size.seconds", INT, 1, at_least(1), "Length of one window of client quotas."),
    Setting("replication.quota.window.num", INT, 11, at_least(1), "Windows over which replication throttles are measured."),
    Setting("replication.quota.window.size.seconds", INT, 1, at_least(1), "Length of one window of replication throttles."),
    Setting("alter.log.dirs.replication.quota.window.num", INT, 11, at_least(1), "Windows over which moves between directories are measured."),
    Setting("alter.log.dirs.replication.quota.window.size.seconds", INT, 1, at_least(1), "Length of one window for moves between directories."),
    Setting("controller.quota.window.num", INT, 11, at_least(1), "Windows over which quotas on controller requests are measured."),
    Setting("controller.quota.window.size.seconds", INT, 1, at_least(1), "Length of one window of quotas on controller requests."),
    Setting("client.quota.callback.class", CLASS, None, None, "A Java class that computes quotas. Tidelog cannot run it and refuses to ignore it.", effect=REFUSED),
)
# fmt: on
