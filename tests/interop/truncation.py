"""What Kafka's Java consumer does where a log was cut below its position: the referee for ours."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.peers.kafka import class_path
from tools.peers.kafka_cluster import KafkaCluster
from tools.peers.maven import java

_JAVA = """
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class AfterTheCut {
    public static void main(String[] arguments) {
        TopicPartition tp = new TopicPartition(arguments[1], 0);
        for (String reset : List.of("none", "earliest", "latest")) {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", arguments[0]);
            settings.put("group.id", arguments[2]);
            settings.put("auto.offset.reset", reset);
            settings.put("enable.auto.commit", "false");
            var strings = new StringDeserializer();
            try (var consumer = new KafkaConsumer<>(settings, strings, strings)) {
                consumer.assign(List.of(tp));
                var records = ConsumerRecords.<String, String>empty();
                for (long end = System.nanoTime() + 20_000_000_000L; records.isEmpty() && System.nanoTime() < end; )
                    records = consumer.poll(Duration.ofMillis(200));
                for (var record : records.records(tp)) {
                    System.out.println(reset + " went on at " + record.offset());
                    break;
                }
            } catch (LogTruncationException cut) {
                System.out.println(reset + " was cut at " + cut.divergentOffsets().get(tp).offset()
                    + ", read up to " + cut.offsetOutOfRangePartitions().get(tp));
            }
        }
    }
}
"""


def java_after_the_cut(cluster: KafkaCluster, topic: str, group_id: str, folder: Path) -> list[str]:
    """A line for each `auto.offset.reset`: what a consumer does that begins where the group has committed."""
    source = folder / "AfterTheCut.java"
    source.write_text(_JAVA)
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    done = subprocess.run(
        [java(), *options, "-cp", class_path(), str(source), cluster.bootstrap, topic, group_id],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
