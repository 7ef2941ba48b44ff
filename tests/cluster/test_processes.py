"""Three broker processes that are killed, paused, stopped and started under load: nothing that was acknowledged is lost, doubled or moved."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.processes import Load, Processes, read_all
from tidelog.storage import files
from tidelog.testing.history import check
from tidelog.testing.history.operations import Outcome
from tidelog.testing.history.recorder import Recorder

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

TOPIC = "orders"
PARTITIONS = 3


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_brokers_die_one_after_the_other_and_all_at_once(tmp_path: Path, durability: str) -> None:
    recorder = Recorder()
    with Processes(tmp_path, settings={"durability": durability}) as brokers:
        brokers.create_topic(TOPIC, PARTITIONS)
        with Load(brokers.bootstrap, TOPIC, PARTITIONS, recorder) as load:
            load.wait_for_more()
            for node_id in range(3):
                brokers.kill(node_id)
                load.wait_for_more()  # by those that are left
                brokers.start(node_id)
                brokers.wait_until_in_sync(TOPIC)
            brokers.signal(leader := brokers.leaders(TOPIC)[0] or 0, signal.SIGSTOP)
            time.sleep(1)
            brokers.signal(leader, signal.SIGCONT)
            load.wait_for_more()
            brokers.stop(leader)
            load.wait_for_more()
            brokers.start(leader)
            for node_id in range(3):
                brokers.kill(node_id)
            for node_id in range(3):
                brokers.launch(node_id)
            for node_id in range(3):
                brokers.wait_until_ready(node_id)
            load.wait_for_more()
        brokers.wait_until_in_sync(TOPIC)
        read_all(brokers.bootstrap, TOPIC, PARTITIONS, recorder)
    history = recorder.history
    check(history).raise_if_dirty()
    assert {send.outcome for send in history.sends} == {Outcome.OK}


def test_after_a_reboot_of_all_in_replicated_partitions_are_led_again_by_themselves(tmp_path: Path) -> None:
    """kill -9 of all three, and to the next run it looks as if the machine had booted since. The page cache has kept everything, so nothing may be missing in the end."""
    recorder = Recorder()
    with Processes(tmp_path, settings={"durability": "replicated"}) as brokers:
        brokers.create_topic(TOPIC, PARTITIONS)
        with Load(brokers.bootstrap, TOPIC, PARTITIONS, recorder) as load:
            load.wait_for_more()
            for node_id in range(3):
                brokers.kill(node_id)
            for node in brokers.nodes:
                run = node.directory / "data" / files.BROKER_RUN
                run.write_text(json.dumps(json.loads(run.read_text()) | {"bootId": "another life"}))
            for node_id in range(3):
                brokers.launch(node_id)
            for node_id in range(3):
                brokers.wait_until_ready(node_id)
            load.wait_for_more()
        brokers.wait_until_in_sync(TOPIC)
        read_all(brokers.bootstrap, TOPIC, PARTITIONS, recorder)
        told = "".join(node.log_file.read_text() for node in brokers.nodes)
    assert told.count("gives up its places") == 3
    for index in range(PARTITIONS):
        assert f"leads {TOPIC}-{index} and was not in sync" in told
    check(recorder.history).raise_if_dirty()
