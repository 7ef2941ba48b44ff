"""What a client may do, as Kafka writes it: a bit per operation. Without an authorizer everybody may do everything."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Operation(IntEnum):
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = bits(
    Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
)  # fmt: skip
CLUSTER_OPERATIONS: Final = bits(
    Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
)  # fmt: skip
GROUP_OPERATIONS: Final = bits(
    Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
)
