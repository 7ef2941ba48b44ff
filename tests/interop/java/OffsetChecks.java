import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TimeoutException;

/** Offsets by time and by end, and what remains of a log whose beginning was deleted. */
final class OffsetChecks extends Checks {
  private static final int COUNT = 100;
  private static final int LATEST_RECORD = 50; // in the middle, with a timestamp after all the others
  private static final long LATEST_TIMESTAMP = 5000;
  private TopicPartition partition;

  OffsetChecks(String bootstrap, Admin admin) {
    super(bootstrap, admin);
  }

  @Override
  void run() throws Exception {
    partition = newTopic("offsets");
    fill();
    listing();
    deletion();
  }

  private void fill() throws Exception {
    try (KafkaProducer<byte[], byte[]> producer = producer()) {
      for (int i = 0; i < COUNT; i++) {
        long timestamp = i == LATEST_RECORD ? LATEST_TIMESTAMP : 1000L + i;
        byte[] value = bytes(String.valueOf(i));
        // One batch for each record.
        producer.send(new ProducerRecord<>(partition.topic(), 0, timestamp, null, value)).get();
      }
    }
  }

  private ListOffsetsResultInfo find(OffsetSpec spec) throws Exception {
    return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get();
  }

  private long deleteBefore(long offset) throws Exception {
    Map<TopicPartition, RecordsToDelete> wanted = Map.of(partition, RecordsToDelete.beforeOffset(offset));
    return admin.deleteRecords(wanted).lowWatermarks().get(partition).get().lowWatermark();
  }

  private void listing() {
    check("listOffsets of the ends", () -> {
      expectEqual((long) COUNT, find(OffsetSpec.latest()).offset());
      expectEqual(0L, find(OffsetSpec.earliest()).offset());
    });
    check("listOffsets of the latest timestamp", () -> {
      ListOffsetsResultInfo found = find(OffsetSpec.maxTimestamp());
      expectEqual((long) LATEST_RECORD, found.offset());
      expectEqual(LATEST_TIMESTAMP, found.timestamp());
    });
    check("listOffsets by timestamp", () -> {
      expectEqual(20L, find(OffsetSpec.forTimestamp(1020)).offset());
      expectEqual((long) LATEST_RECORD, find(OffsetSpec.forTimestamp(4000)).offset());
      expectEqual(-1L, find(OffsetSpec.forTimestamp(9000)).offset());
    });
    // A broker without tiered storage: all is local, and nothing is tiered.
    check("listOffsets of the earliest local record", () -> expectEqual(0L, find(tier("earliestLocal")).offset()));
    check("listOffsets of the latest tiered record", () -> expectEqual(-1L, find(tier("latestTiered")).offset()));
    check("listOffsets of an unknown partition is tried until the time is over", () -> {
      TopicPartition unknown = new TopicPartition(partition.topic(), 9);
      ListOffsetsOptions options = new ListOffsetsOptions().timeoutMs(3000);
      expectError(
          TimeoutException.class,
          () -> admin.listOffsets(Map.of(unknown, OffsetSpec.latest()), options).all().get());
    });
  }

  /** By reflection: not every release of the client has these. */
  private static OffsetSpec tier(String name) throws Exception {
    try {
      return (OffsetSpec) OffsetSpec.class.getMethod(name).invoke(null);
    } catch (NoSuchMethodException missing) {
      throw new NotInThisClient("OffsetSpec has no " + name);
    }
  }

  private void deletion() {
    check("deleteRecords moves the log start offset", () -> {
      expectEqual(30L, deleteBefore(30));
      expectEqual(30L, find(OffsetSpec.earliest()).offset());
      try (KafkaConsumer<byte[], byte[]> consumer = readerOf(List.of(partition), "max.poll.records", "1")) {
        expectEqual(30L, read(consumer, 1).get(0).offset());
      }
    });
    check("deleteRecords refuses an offset past the end", () ->
        expectError(OffsetOutOfRangeException.class, () -> deleteBefore(3000)));
    check("a consumer without a reset policy is told that its offset is gone", () -> {
      try (KafkaConsumer<byte[], byte[]> consumer = consumer("auto.offset.reset", "none")) {
        consumer.assign(List.of(partition));
        consumer.seek(partition, 5);
        expectOutOfRange(consumer);
      }
    });
    check("deleteRecords of everything", () -> expectEqual((long) COUNT, deleteBefore(-1)));
  }

  private static void expectOutOfRange(KafkaConsumer<byte[], byte[]> consumer) {
    try {
      for (int i = 0; i < 20; i++) {
        consumer.poll(Duration.ofMillis(200));
      }
    } catch (org.apache.kafka.clients.consumer.OffsetOutOfRangeException expected) {
      return;
    }
    throw new AssertionError("poll() did not fail");
  }
}
