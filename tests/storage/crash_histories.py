"""Small histories of storage, each about one thing that may be under way when the machine crashes. `test_crash_states` crashes them."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.testing.sim.storage_world import StorageWorld

ORDERS = ("orders", 0)
OTHER = ("orders", 1)
PAYMENTS = ("payments", 0)
History = Callable[[StorageWorld], None]


# ---- append


def append_and_flush(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.flush()
    world.append(count=2)


def several_partitions_and_producers(world: StorageWorld) -> None:
    world.create("orders", (0, 1))
    world.create("payments")
    world.append(ORDERS, 2, producer=5)
    world.append(ORDERS, producer=6, records=3)
    world.append(PAYMENTS, producer=-1)
    world.flush()
    world.append(OTHER, 2, producer=6)
    world.append(ORDERS, producer=5)
    world.begin_flush()
    world.append(PAYMENTS, producer=5)
    world.finish_flush()
    world.append(OTHER, producer=-1)


def appends_while_a_flush_runs(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.begin_flush()
    world.append(count=2, records=2)
    world.finish_flush()
    world.append()
    world.flush()


def a_follower_with_gaps(world: StorageWorld) -> None:
    world.create()
    world.replicate(epoch=1)
    world.replicate(epoch=1, gap=3)
    world.flush()
    world.replicate(epoch=2, gap=1)
    world.roll()
    world.replicate(epoch=2)
    world.flush()
    world.checkpoint()
    world.replicate(epoch=3, gap=2)


# ---- roll


def roll(world: StorageWorld) -> None:
    world.create()
    world.append(count=6)
    world.roll()
    world.append(count=2)


def roll_then_flush(world: StorageWorld) -> None:
    world.create()
    world.append(count=4)
    world.roll()
    world.append()
    world.flush()
    world.checkpoint()
    world.append()


def roll_while_a_flush_runs(world: StorageWorld) -> None:
    world.create()
    world.append(count=4)  # enough for the time index to have more than the entry it gets when it is sealed
    world.begin_flush()
    world.roll()
    world.finish_flush()
    world.checkpoint()
    world.append(count=2)


def roll_by_size_again_and_again(world: StorageWorld) -> None:
    world.create()
    world.append(count=7, size=100)
    world.flush()
    world.checkpoint()
    world.append(count=5, size=100)


def new_epochs(world: StorageWorld) -> None:
    world.create()
    world.append(count=2, epoch=1)
    world.flush()
    world.append(epoch=2)
    world.roll()
    world.append(epoch=3)
    world.flush()
    world.checkpoint()
    world.new_epoch(4)
    world.append(epoch=4)


# ---- checkpoint


def checkpoints_between_flushes(world: StorageWorld) -> None:
    world.create("orders", (0, 1))
    world.append(ORDERS, 3)
    world.checkpoint()
    world.flush(ORDERS)
    world.append(OTHER, 2)
    world.checkpoint()
    world.roll(ORDERS)
    world.append(ORDERS)
    world.flush()
    world.checkpoint()
    world.append(OTHER)


def a_checkpoint_taken_before_and_written_after(world: StorageWorld) -> None:
    """What happens while the checkpoint is on its way to disk must not be vouched for by it."""
    world.create()
    world.append(count=3)
    world.flush()
    world.begin_checkpoint()
    world.truncate(1)
    world.append(count=2, epoch=1)
    world.finish_checkpoint()
    world.append(epoch=1)
    world.checkpoint()


def a_checkpoint_while_a_flush_runs(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.flush()
    world.append(count=3)
    world.begin_flush()
    world.checkpoint()
    world.append()
    world.finish_flush()
    world.checkpoint()


# ---- retention and DeleteRecords


def retention_by_size(world: StorageWorld) -> None:
    world.create()
    world.append(count=3)
    world.roll()
    world.append(count=2)
    world.roll()
    world.append()
    world.commit()
    world.configure(retention_bytes=1)
    assert world.retain() == 2
    world.checkpoint()
    world.dispose()
    world.configure(retention_bytes=-1)
    world.append()
    world.flush()


def retention_by_time(world: StorageWorld) -> None:
    world.create()
    world.append(count=3, age_ms=500)
    world.roll()
    world.append(count=2)
    world.flush()
    world.configure(retention_ms=400)
    assert world.retain() == 1
    world.append()
    world.checkpoint()
    world.dispose()
    world.append()


def retention_takes_everything(world: StorageWorld) -> None:
    world.create()
    world.append(count=3)
    world.flush()
    world.configure(retention_ms=0)
    assert world.retain(later_ms=1000) == 1
    world.configure(retention_ms=-1)
    world.checkpoint()
    world.dispose(later_ms=2000)
    world.append()


def retention_while_a_checkpoint_is_written(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.roll()
    world.append(count=2)
    world.roll()
    world.append()
    world.flush()
    world.begin_checkpoint()
    world.configure(retention_bytes=0)
    world.retain()
    world.finish_checkpoint()
    world.dispose()
    world.checkpoint()
    world.dispose()


def a_flush_after_retention_took_what_was_never_synced(world: StorageWorld) -> None:
    """Until a checkpoint holds the new log start, the flushed records are found only behind those that retention has let go."""
    world.create()
    world.append(count=2)
    world.roll()
    world.append(count=2)
    world.commit()
    world.configure(retention_bytes=0)
    assert world.retain() == 2
    world.configure(retention_bytes=-1)
    world.append(count=2)
    world.flush()
    world.append()
    world.checkpoint()
    world.dispose()


def retention_after_a_checkpoint_was_taken(world: StorageWorld) -> None:
    """The checkpoint holds a log start below which a segment is only now let go: what is known of its producers is not durable yet."""
    world.create()
    world.append(count=3)
    world.flush()
    world.delete_records(3)
    world.begin_checkpoint()
    world.configure(retention_bytes=0)
    assert world.retain() == 1
    world.finish_checkpoint()
    world.dispose()
    world.checkpoint()
    world.dispose()


def delete_records(world: StorageWorld) -> None:
    world.create()
    world.append(count=3)
    world.roll()
    world.append(count=2)
    world.flush()
    world.delete_records(4)
    world.retain()
    world.checkpoint()
    world.dispose()
    world.append()


def delete_records_inside_a_batch(world: StorageWorld) -> None:
    world.create()
    world.append(records=3)
    world.append(records=3)
    world.flush()
    world.delete_records(1)
    world.append()
    world.delete_records(4)


def delete_records_never_synced(world: StorageWorld) -> None:
    """`durability=replicated`: what is committed may be deleted before it was ever synced."""
    world.create()
    world.append(count=3)
    world.commit()
    world.delete_records(2)
    world.append()
    world.flush()


def delete_records_over_segments(world: StorageWorld) -> None:
    """The first segments go with the next start, which must remember their producers."""
    world.create()
    world.append(count=2, producer=6)
    world.roll()
    world.append(count=2)
    world.roll()
    world.append()
    world.commit()
    world.delete_records(4)
    world.append()
    world.flush()


# ---- truncation


def truncate_inside_a_segment(world: StorageWorld) -> None:
    world.create()
    world.append(count=3)
    world.flush()
    world.checkpoint()
    world.truncate(1)
    world.append(count=2, epoch=1)
    world.flush()


def truncate_over_segments(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.roll()
    world.append(count=2)
    world.roll()
    world.append()
    world.flush()
    world.checkpoint()
    world.truncate(1)
    world.append(count=2, epoch=1)


def truncate_what_was_never_synced(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.roll()
    world.append(count=2)
    world.truncate(3)
    world.append(count=2, epoch=1)
    world.flush()


def truncate_while_a_flush_runs(world: StorageWorld) -> None:
    world.create()
    world.append(count=4)
    world.begin_flush()
    world.truncate(2)
    world.append(count=2, epoch=1)
    world.finish_flush()
    world.checkpoint()
    world.append(epoch=1)


def truncate_twice(world: StorageWorld) -> None:
    world.create()
    world.append(count=3, epoch=1)
    world.flush()
    world.checkpoint()
    world.truncate(2)
    world.append(epoch=2)
    world.truncate(1)
    world.append(count=2, epoch=3)
    world.flush()
    world.checkpoint()


def start_anew_elsewhere(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.roll()
    world.append(count=2)
    world.flush()
    world.checkpoint()
    world.restart_at(10)
    world.append(epoch=1)
    world.flush()


def start_anew_after_retention(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.roll()
    world.append()
    world.flush()
    world.delete_records(2)
    world.retain()
    world.restart_at(3)
    world.append(epoch=1)
    world.flush()


# ---- topics


def create_topics(world: StorageWorld) -> None:
    world.create("orders", (0, 1))
    world.append(ORDERS)
    world.create("payments")
    world.append(PAYMENTS)
    world.flush()


def delete_a_topic(world: StorageWorld) -> None:
    world.create("orders", (0, 1))
    world.create("payments")
    for key in (ORDERS, OTHER, PAYMENTS):
        world.append(key, 2)
    world.flush()
    world.checkpoint()
    world.append(PAYMENTS)
    world.delete_topic("orders")
    world.append(PAYMENTS)
    world.flush()
    world.dispose()


def delete_a_topic_while_it_is_flushed(world: StorageWorld) -> None:
    world.create()
    world.create("payments")
    world.append(ORDERS, 2)
    world.append(PAYMENTS)
    world.begin_flush()
    world.delete_topic("orders")
    world.finish_flush()
    world.dispose()


def delete_and_create_again(world: StorageWorld) -> None:
    """The same name, another topic: nothing of the first, neither its records nor what checkpoints say of it."""
    world.create()
    world.append(count=4)
    world.flush()
    world.delete_records(2)
    world.delete_topic()
    world.create()
    world.append(count=2)
    world.flush()
    world.checkpoint()
    world.append()
    world.dispose()


def delete_and_create_again_while_a_checkpoint_is_written(world: StorageWorld) -> None:
    world.create()
    world.append(count=4)
    world.flush()
    world.begin_checkpoint()
    world.delete_topic()
    world.create()
    world.append(count=2)
    world.finish_checkpoint()
    world.append()
    world.flush()
    world.checkpoint()


# ---- stops and starts


def stop_cleanly(world: StorageWorld) -> None:
    world.create("orders", (0, 1))
    world.append(ORDERS, 3)
    world.roll(ORDERS)
    world.append(ORDERS)
    world.append(OTHER, 2)
    world.stop()


def stop_cleanly_and_start(world: StorageWorld) -> None:
    world.create()
    world.append(count=3)
    world.stop()
    world.start()
    world.append(count=2)
    world.flush()
    world.append()


def stop_cleanly_twice(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.stop()
    world.start()
    world.append(count=2)
    world.stop()
    world.start()
    world.append()


def killed_and_recovered(world: StorageWorld) -> None:
    """The page cache outlives the process: what recovery finds in it is not durable yet, and must not be taken for it."""
    world.create()
    world.append(count=4)
    world.roll()
    world.append(count=2)
    world.start()
    world.append(epoch=1)
    world.flush()
    world.checkpoint()
    world.append(epoch=1)


def killed_again_and_again(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.flush()
    world.append(count=2)
    world.start()
    world.roll()
    world.append(epoch=1)
    world.start()
    world.append(epoch=2)
    world.flush()


def killed_with_retention_half_done(world: StorageWorld) -> None:
    world.create()
    world.append(count=2)
    world.roll()
    world.append(count=2)
    world.roll()
    world.append()
    world.flush()
    world.configure(retention_bytes=0)
    world.retain()
    world.checkpoint()
    world.start()
    world.append(epoch=1)
    world.dispose()
    world.flush()


def killed_with_a_truncation_noted(world: StorageWorld) -> None:
    world.create()
    world.append(count=4)
    world.flush()
    world.checkpoint()
    world.truncate(2)
    world.append(epoch=1)
    world.start()
    world.append(epoch=2)
    world.flush()
    world.checkpoint()
    world.append(epoch=2)


HISTORIES: tuple[History, ...] = (
    append_and_flush, several_partitions_and_producers, appends_while_a_flush_runs, a_follower_with_gaps,
    roll, roll_then_flush, roll_while_a_flush_runs, roll_by_size_again_and_again, new_epochs,
    checkpoints_between_flushes, a_checkpoint_taken_before_and_written_after, a_checkpoint_while_a_flush_runs,
    retention_by_size, retention_by_time, retention_takes_everything, retention_while_a_checkpoint_is_written,
    a_flush_after_retention_took_what_was_never_synced,
    retention_after_a_checkpoint_was_taken,
    delete_records, delete_records_inside_a_batch, delete_records_never_synced, delete_records_over_segments,
    truncate_inside_a_segment, truncate_over_segments, truncate_what_was_never_synced, truncate_while_a_flush_runs, truncate_twice,
    start_anew_elsewhere, start_anew_after_retention,
    create_topics, delete_a_topic, delete_a_topic_while_it_is_flushed, delete_and_create_again,
    delete_and_create_again_while_a_checkpoint_is_written,
    stop_cleanly, stop_cleanly_and_start, stop_cleanly_twice,
    killed_and_recovered, killed_again_and_again, killed_with_retention_half_done, killed_with_a_truncation_noted,
)  # fmt: skip
