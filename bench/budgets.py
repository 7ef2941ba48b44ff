"""Microseconds that each operation on a hot path may cost, CPU of one thread on the reference machine (`bench/timing.py`).

One place for all of them; the source of each hot path repeats its own budget beside the code. An operation without a budget is only shown.
Each is what the path cost when it was last worked on, and a fifth: enough for the noise that the yardstick leaves, too little for a
second walk over anything.
"""

from __future__ import annotations

BUDGETS: dict[str, float] = {
    # wire/headers.py, wire/produce_frames.py, wire/fetch_frames.py
    "request header, read": 1.0,
    "Produce v7 frame, read": 2.4,
    "Produce v7 frame, answer": 1.2,
    "Produce v13 frame, read": 2.4,
    "Produce v13 frame, answer": 1.8,
    "Fetch v11 frame, answer": 2.5,
    "Fetch v17 frame, answer": 3.2,
    # records/validation.py
    "validate_for_append, batch of one record of 100 B": 2.0,
    # storage/log.py, storage/log_read.py, storage/log_flush.py
    "append, one record": 6.5,
    "append, idempotent producer": 7.5,
    "tail read, everything fits": 2.6,
    "random seek by offset": 32.0,
    "flush ticket, begin and finish": 40.0,
    # storage/log_append.py: one of fifty batches in an answer, its CRC, its index entry and its part of the writes
    "append as follower, per batch of 4 KiB": 11.0,
    # broker/api/produce.py, the write included
    "produce request v7, one record": 20.0,
    "produce request v10, one record": 21.0,
    "produce request v13, one record": 20.0,
    # broker/api/fetch.py
    "fetch request v11, one new batch": 42.0,
    "fetch request v17, one new batch": 45.0,
    # broker/connection.py: the whole process, kernel included, many requests in one read
    "process: produce, replicated, depth 50": 24.0,
    "process: ApiVersions, depth 50": 8.0,
    "process: fetch that finds nothing, depth 50": 24.0,
    # replication/group_commit.py: fifty requests share a sync
    "process: produce, fsync, depth 50": 45.0,
    # replication/purgatory.py
    "process: waiting fetch and the produce that wakes it": 270.0,
    # client/partitioner.py, client/producer/batch.py and accumulator.py, records/columnar_encode.py
    "partition_for_key, a new key of 12 B": 3.5,
    "append and seal, per record of 100 B": 2.3,
    "Arrow row of 100 B, encoded": 0.18,
    "Arrow row, partition of its key": 0.02,
    # client/consumer/records.py, client/consumer/arrow.py
    "record of 100 B, decoded": 1.8,
    "fetched chunk of 1,000 records to Arrow, per row": 0.17,
    # client/producer/producer.py, client/consumer/consumer.py: the application's thread, sockets included
    "client: send, per record of 100 B": 4.4,
    "client: poll, per record of 100 B": 2.3,
}
"""Operation, as `python -m bench.micro` prints it, to microseconds."""
