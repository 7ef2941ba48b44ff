"""Histories by chance: everything that can happen to storage, in any order, with the loop at work while threads wait for the disk.

Owns which steps follow each other, from one seed. The same seed on the same commit gives the same history; `steps` tells it in words.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from tidelog.storage.checkpoints import TopicPartition
from tidelog.testing.sim.storage_ledger import Sent
from tidelog.testing.sim.storage_world import StorageWorld

_TOPICS: Final = ("orders", "payments")
_PARTITIONS_MAX: Final = 3
_IN_BETWEEN: Final = 0.12  # how often the loop does something before an operation of a thread


class RandomHistory:
    def __init__(self, seed: int, *, dirs: tuple[str, ...] = ("/a",)) -> None:
        self._rng = Random(seed)
        self.world = StorageWorld(dirs=dirs, seed=seed)
        self.world.meanwhile = self._meanwhile
        self.steps: list[str] = []
        self._epoch = 0

    def run(self, count: int) -> StorageWorld:
        self._create()
        for _ in range(count):
            self._step()
        self.world.meanwhile = None
        return self.world

    # ---- choosing

    def _step(self) -> None:
        action = self._rng.choices(
            [action for action, _ in self._actions()], [weight for _, weight in self._actions()]
        )[0]
        action()

    def _actions(self) -> list[tuple[Callable[[], None], int]]:
        world = self.world
        return [
            (self._append, 10),
            (self._roll, 3),
            (self._flush, 5),
            (self._begin_flush, 2),
            (lambda: self._do("finish_flush", world.finish_flush), 2),
            (lambda: self._do("checkpoint", world.checkpoint), 3),
            (lambda: self._do("begin_checkpoint", world.begin_checkpoint), 1),
            (lambda: self._do("finish_checkpoint", world.finish_checkpoint), 1),
            (self._retain, 2),
            (lambda: self._do("dispose", world.dispose), 2),
            (self._delete_records, 2),
            (self._truncate, 2),
            (self._restart_at, 1),
            (self._new_epoch, 1),
            (self._commit, 1),
            (self._swap, 3),
            (self._create, 1),
            (self._delete_topic, 1),
            (self._stop_and_start, 1),
            (lambda: self._do("killed", world.start), 1),
        ]

    def _meanwhile(self) -> None:
        if self._rng.random() < _IN_BETWEEN:
            self._rng.choice(
                (self._append, self._append, self._roll, self._truncate, self._retain, self._new_epoch)
            )()

    def _do(self, name: str, action: Callable[[], object]) -> None:
        self.steps.append(f"{self.world.now}: {name}")
        action()

    def _key(self) -> TopicPartition | None:
        keys = sorted(self.world.manager.logs)
        return self._rng.choice(keys) if keys else None

    # ---- what may happen

    def _create(self) -> None:
        topic = self._rng.choice(_TOPICS)
        held = [key for key in self.world.manager.logs if key[0] == topic]
        if not held:
            count = 1 + self._rng.randrange(2)
            if len(self.world.manager.logs) + count <= _PARTITIONS_MAX:
                self._do(f"create {topic} {count}", lambda: self.world.create(topic, range(count)))

    def _delete_topic(self) -> None:
        key = self._key()
        if key is not None:
            self._do(f"delete_topic {key[0]}", lambda: self.world.delete_topic(key[0]))

    def _append(self) -> None:
        key = self._key()
        if key is not None:
            how = {
                "count": 1 + self._rng.randrange(2),
                "records": 1 + self._rng.randrange(3),
                "size": self._rng.choice((30, 60, 150)),
                "producer": self._rng.choice((-1, 5, 6)),
                "age_ms": self._rng.choice((0, 0, 40)),
                "epoch": self._epoch_of(key),
            }
            self._do(f"append {key} {how}", lambda: self.world.append(key, **how))

    def _epoch_of(self, key: TopicPartition) -> int:
        return max(self._epoch, self.world.log(key).latest_epoch or 0)

    def _roll(self) -> None:
        key = self._key()
        if key is not None:
            self._do(f"roll {key}", lambda: self.world.roll(key))

    def _new_epoch(self) -> None:
        self._epoch += 1
        key = self._key()
        if key is not None:
            self._do(f"new_epoch {self._epoch} {key}", lambda: self.world.new_epoch(self._epoch_of(key), key))

    def _flush(self) -> None:
        self._do("flush", self.world.flush)

    def _begin_flush(self) -> None:
        key = self._key()
        if key is not None:
            self._do(f"begin_flush {key}", lambda: self.world.begin_flush(key))

    def _commit(self) -> None:
        key = self._key()
        if key is not None:
            self._do(f"commit {key}", lambda: self.world.commit(key))

    def _retain(self) -> None:
        key = self._key()
        if key is not None:
            limits: dict[str, object] = {
                "retention_bytes": self._rng.choice((-1, 0, 200, 700)),
                "retention_ms": self._rng.choice((-1, -1, 20)),
            }
            self.world.configure(key, **limits)
            self._do(f"retain {key} {limits}", self.world.retain)
            if self.world.is_online(key):
                self.world.configure(key, retention_bytes=-1, retention_ms=-1)

    def _delete_records(self) -> None:
        key = self._key()
        if key is not None:
            log = self.world.log(key)
            offset = log.log_start_offset + self._rng.randrange(log.high_watermark - log.log_start_offset + 1)
            self._do(f"delete_records {offset} {key}", lambda: self.world.delete_records(offset, key))

    def _truncate(self) -> None:
        key = self._key()
        if key is not None:
            log = self.world.log(key)
            offset = log.log_end_offset - self._rng.randrange(4)
            if offset >= log.log_start_offset and log.release is None:
                self._epoch += 1
                self._do(f"truncate {offset} {key}", lambda: self.world.truncate(offset, key))

    def _restart_at(self) -> None:
        key = self._key()
        if key is not None:
            offset = self.world.log(key).log_end_offset + self._rng.randrange(5)
            self._do(f"restart_at {offset} {key}", lambda: self.world.restart_at(offset, key))

    def _swap(self) -> None:
        key = self._key()
        log = self.world.log(key) if key is not None else None
        if key is None or log is None or log.swap is not None:
            return
        # What is sealed and durable may be replaced.
        last = sum(segment.base_offset <= log.recovery_point for segment in log.segments[1:])
        if not last or log.unsynced.segments:
            return
        first = self._rng.randrange(last)
        stop = first + 1 + self._rng.randrange(last - first)
        begin, end = log.segments[first].base_offset, log.segments[stop].base_offset
        inside = range(begin + 1, end)
        split = sorted(self._rng.sample(inside, min(len(inside), self._rng.choice((0, 0, 1, 2)))))
        if any(self._cuts_a_batch(key, offset) for offset in split) or begin < self._first_kept(key):
            return
        rng = Random(self._rng.random())

        def drop(batch: Sent) -> bool:
            return batch.header.producer_id < 0 and rng.random() < 0.6

        self._do(
            f"swap {first}:{stop} {split} {key}",
            lambda: self.world.swap(key, old=slice(first, stop), drop=drop, split_at=split),
        )

    def _cuts_a_batch(self, key: TopicPartition, offset: int) -> bool:
        return any(
            batch.stored.base_offset < offset <= batch.stored.last_offset
            for batch in self.world.ledger.version(key).batches
        )

    def _first_kept(self, key: TopicPartition) -> int:
        return self.world.ledger.version(key).first_offset

    def _stop_and_start(self) -> None:
        def restart() -> None:
            self.world.stop()
            self.world.start()

        self._do("stop and start", restart)
