"""The `broker-run` files of all log directories: read at a start, judged with what recovery found, written before anything rests on them.

Owns whether this broker may say that it lost nothing (D10, I23), and under which epoch. The order makes a crash at any point harmless:

    read ─> logs recovered ─> a loss, and the machine's present boot id, written in one go ─> registered ─> epoch written, the loss forgotten

Until the second write the evidence stands on disk, and the next start judges anew; from then on the loss does, until the controller has been told. What recovery removes
(the note of a failed sync) is written down before. Inert until `begin`: tests and simulations of a single log need none of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.errors import CorruptDataError
from tidelog.storage import broker_run, files
from tidelog.storage.broker_run import INCARNATIONS_MAX, UNKNOWN_EPOCH, BrokerRun
from tidelog.storage.checkpoints import TopicPartition
from tidelog.storage.disk import DiskError
from tidelog.storage.log_dirs import LogDir

if TYPE_CHECKING:
    from tidelog.storage.log_manager import LogManager


class Registered(NamedTuple):
    """This broker as the metadata knows it."""

    incarnation_id: bytes
    epoch: int


class RunLedger:
    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._is_begun = False
        self._before: dict[str, BrokerRun | None] = {}
        """By directory: what the run before has left there."""
        self._stored: dict[str, BrokerRun | None] = {}
        """By directory: what stands there now."""
        self._now = BrokerRun()
        self.loss: str | None = None
        """Why this broker must not say that it has lost nothing, until that has been told."""

    # ---- a start

    def begin(self, boot_id: str | None) -> None:
        """Before the logs are opened. What opening them would destroy is written down here."""
        self._is_begun = True
        self._now = BrokerRun(boot_id)
        for directory in self._online():
            try:
                self._read(directory)
            except DiskError as error:
                self._logs.fail_dir(directory.path, error)

    def _read(self, directory: LogDir) -> None:
        path = files.join(directory.path, files.BROKER_RUN)
        try:
            before = self._stored[directory.path] = broker_run.read(self._logs.disk, path)
        except CorruptDataError as error:
            before = BrokerRun(loss=str(error))
        self._before[directory.path] = before
        if not directory.clean and not directory.is_new:  # one whose sync has failed is never marked as clean
            self._note_failed_syncs(directory, before)

    def _note_failed_syncs(self, directory: LogDir, before: BrokerRun | None) -> None:
        for name in self._logs.disk.list_dir(directory.path):
            if files.parse_partition_dir(name) is None:
                continue
            note = files.join(files.join(directory.path, name), files.SYNC_FAILED)
            loss = broker_run.lost_by_failed_sync(before, name) if self._logs.disk.exists(note) else None
            if loss is not None:
                self._before[directory.path] = noted = (before or BrokerRun())._replace(loss=loss)
                self._store(directory, noted)
                return

    def loaded(self, replicas: Iterable[TopicPartition], *, in_memory: bool, incarnation_id: bytes) -> None:
        """Every log is open and all that was found is synced. `replicas` are those that the metadata places here, `in_memory`: some of them are going to count before they are synced.

        `incarnation_id` is that of this run: whatever it registers as is known by it, even if the answer never comes.
        """
        if not self._is_begun:
            return
        self.loss = next(self._losses(replicas), None)
        before = [run for run in self._before.values() if run is not None]
        epochs = {run.epoch for run in before}
        incarnations = {run.incarnations for run in before}
        known = incarnations.pop() if len(incarnations) == 1 else ()
        self._now = self._now._replace(
            in_memory=in_memory,
            epoch=epochs.pop() if len(epochs) == 1 else UNKNOWN_EPOCH,
            incarnations=(*known, incarnation_id)[-INCARNATIONS_MAX:],
            loss=self.loss,
        )
        self._store_everywhere()

    def _losses(self, replicas: Iterable[TopicPartition]) -> Iterator[str]:
        logs = self._logs
        boot_id = self._now.boot_id
        for directory in logs.dirs:
            if directory.path not in self._before or not directory.online:
                yield f"log directory {directory.path} cannot be used: {directory.error}"
            elif not directory.is_new:
                before = self._before[directory.path]
                loss = broker_run.lost_by_restart(before, clean=directory.clean, boot_id=boot_id)
                if loss is not None:
                    yield f"log directory {directory.path}: {loss}"
        for (topic, index), failure in logs.failed_logs.items():
            yield f"{topic}-{index} cannot be opened: {failure}"
        for log in logs.logs.values():
            before = self._before.get(files.parent(log.directory))
            same_life = broker_run.same_machine_life(before, boot_id)
            loss = broker_run.lost_in_log(log.recovery, same_life=same_life)
            if loss is not None:
                yield loss
        for key in replicas:
            if key not in logs.logs and any(directory.knows(key) for directory in logs.dirs):
                yield f"{key[0]}-{key[1]} is gone from the disk, and a checkpoint knows of records in it"

    # ---- what is said

    def previous_epoch(self, known: Registered | None) -> int:
        """The epoch of the registration whose places this broker may claim, because its directories were that run's: UNKNOWN_EPOCH if they were not.

        The metadata at hand may be old, and the directories a copy that is older still. One of the two must show that they belong together.
        """
        if not self._is_begun:
            return UNKNOWN_EPOCH if known is None else known.epoch
        claimed: set[int] = set()
        for directory in self._online():
            if directory.is_new:
                continue
            run = self._before.get(directory.path)
            if run is not None and known is not None and known.incarnation_id in run.incarnations:
                claimed.add(known.epoch)
                continue
            if run is None:
                own = directory.broker_epoch if directory.clean else UNKNOWN_EPOCH
            else:
                own = run.epoch
            # A run that these directories know nothing of came after theirs.
            claimed.add(UNKNOWN_EPOCH if known is not None and known.epoch > own else own)
        return claimed.pop() if len(claimed) == 1 else UNKNOWN_EPOCH

    def registered(self, epoch: int) -> None:
        """The controller has answered: whatever was lost has been told. Durable when it returns, except in directories that fail."""
        self.loss = None
        if self._is_begun:
            self._now = self._now._replace(epoch=epoch, incarnations=self._now.incarnations[-1:], loss=None)
            self._store_everywhere()

    def count_in_memory(self) -> bool:
        """Whether replicas may be counted for what they have not synced: only once that is written down. Waits for the disk, once in a run if at all."""
        if not self._is_begun:
            return True
        if not self._now.in_memory:
            self._now = self._now._replace(in_memory=True)
            self._store_everywhere()
        return all(self._is_stored(directory) for directory in self._online())

    # ---- files

    def _online(self) -> list[LogDir]:
        return [directory for directory in self._logs.dirs if directory.online]

    def _is_stored(self, directory: LogDir) -> bool:
        stored = self._stored.get(directory.path)
        return stored is not None and (stored.in_memory, stored.boot_id) == (True, self._now.boot_id)

    def _store_everywhere(self) -> None:
        for directory in self._online():
            if self._stored.get(directory.path) != self._now:
                self._store(directory, self._now)

    def _store(self, directory: LogDir, run: BrokerRun) -> None:
        """On a full disk the old one stays, and whoever needs the new one does without: see `count_in_memory`."""
        try:
            broker_run.write(self._logs.disk, files.join(directory.path, files.BROKER_RUN), run)
            self._stored[directory.path] = run
        except DiskError as error:
            if not error.out_of_space:
                self._logs.fail_dir(directory.path, error)
