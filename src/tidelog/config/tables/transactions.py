"""Idempotent and transactional producers.

Facts only: names, types, defaults and limits as Kafka 4.3 has them, what they mean in our words, and whether Tidelog
acts on them. One row per line; nothing is computed here.
"""

from __future__ import annotations

from tidelog.config.definition import Setting
from tidelog.config.tables.short import ACTS, BOOLEAN, CLUSTER_WIDE, INT, SHORT
from tidelog.config.validators import at_least

# fmt: off
SETTINGS: tuple[Setting, ...] = (
    Setting("producer.id.expiration.ms", INT, 86_400_000, at_least(1), "An idempotent producer that has been silent for this long is forgotten, and its duplicates can no longer be told.", update=CLUSTER_WIDE, effect=ACTS),
    Setting("producer.id.expiration.check.interval.ms", INT, 600_000, at_least(1), "How often silent producers are looked for.", internal=True),
    Setting("transactional.id.expiration.ms", INT, 604_800_000, at_least(1), "A transactional id without any change for this long is forgotten."),
    Setting("transaction.max.timeout.ms", INT, 900_000, at_least(1), "Longest transaction timeout that a producer may ask for."),
    Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, at_least(1), "How often transactions that ran out of time are aborted."),
    Setting("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, at_least(1), "How often expired transactional ids are removed."),
    Setting("transaction.partition.verification.enable", BOOLEAN, True, None, "Check with the coordinator that a partition belongs to the transaction before records are appended.", update=CLUSTER_WIDE),
    Setting("transaction.two.phase.commit.enable", BOOLEAN, False, None, "Allow producers to prepare a transaction that only they may end (KIP-939)."),
    Setting("transaction.state.log.load.buffer.size", INT, 5_242_880, at_least(1), "Bytes read at once when a transaction partition is loaded."),
    Setting("transaction.state.log.min.isr", INT, 2, at_least(1), "min.insync.replicas of __transaction_state."),
    Setting("transaction.state.log.num.partitions", INT, 50, at_least(1), "Partitions of __transaction_state. Not to be changed once transactional ids exist."),
    Setting("transaction.state.log.replication.factor", SHORT, 3, at_least(1), "Replicas of __transaction_state when it is created."),
    Setting("transaction.state.log.segment.bytes", INT, 104_857_600, at_least(1), "Segment size of __transaction_state."),
    Setting("add.partitions.to.txn.retry.backoff.ms", INT, 20, at_least(1), "Pause before the broker asks the coordinator again whether a partition belongs to a transaction."),
    Setting("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, at_least(0), "Longest time the broker keeps asking the coordinator before the producer gets a retriable error."),
)
# fmt: on
