import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;

/** Every compression with every acks: what is read is what was written, and offsets are found by time. */
final class RoundTripChecks extends Checks {
  private static final int COUNT = 2000;
  private static final long FIRST_TIMESTAMP = 1000;

  RoundTripChecks(String bootstrap, Admin admin) {
    super(bootstrap, admin);
  }

  @Override
  void run() {
    for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
      for (String acks : List.of("0", "1", "all")) {
        check("round trip " + codec + " acks=" + acks, () -> roundTrip(codec, acks));
      }
    }
  }

  private void roundTrip(String codec, String acks) throws Exception {
    TopicPartition partition = newTopic("round-trip");
    String idempotent = String.valueOf(acks.equals("all"));
    try (KafkaProducer<byte[], byte[]> producer =
        producer("compression.type", codec, "acks", acks, "enable.idempotence", idempotent, "linger.ms", "5")) {
      for (int i = 0; i < COUNT; i++) {
        producer.send(recordNumber(i, partition));
      }
    }
    // Small fetches, so that the log is read in many answers.
    try (KafkaConsumer<byte[], byte[]> consumer =
        readerOf(List.of(partition), "fetch.max.bytes", "20000", "max.partition.fetch.bytes", "10000")) {
      List<ConsumerRecord<byte[], byte[]>> records = read(consumer, COUNT);
      for (int i = 0; i < COUNT; i++) {
        expectRecord(i, records.get(i));
      }
      expectOffsets(consumer, partition);
    }
  }

  private static String key(int number) {
    return number % 3 == 0 ? null : "k" + number;
  }

  private static String value(int number) {
    return number % 5 == 0 ? null : "v" + number;
  }

  private static ProducerRecord<byte[], byte[]> recordNumber(int number, TopicPartition partition) {
    List<Header> headers =
        List.of(new RecordHeader("number", bytes(String.valueOf(number))), new RecordHeader("empty", (byte[]) null));
    return new ProducerRecord<>(
        partition.topic(),
        partition.partition(),
        FIRST_TIMESTAMP + number,
        bytes(key(number)),
        bytes(value(number)),
        headers);
  }

  private static void expectRecord(int number, ConsumerRecord<byte[], byte[]> found) {
    expectEqual((long) number, found.offset());
    expectEqual(FIRST_TIMESTAMP + number, found.timestamp());
    expectEqual(key(number), text(found.key()));
    expectEqual(value(number), text(found.value()));
    expectEqual(String.valueOf(number), text(found.headers().lastHeader("number").value()));
    expectEqual(null, found.headers().lastHeader("empty").value());
  }

  private static void expectOffsets(KafkaConsumer<byte[], byte[]> consumer, TopicPartition partition) {
    List<TopicPartition> partitions = List.of(partition);
    expectEqual(500L, consumer.offsetsForTimes(Map.of(partition, FIRST_TIMESTAMP + 500)).get(partition).offset());
    expectEqual(null, consumer.offsetsForTimes(Map.of(partition, 99_999L)).get(partition));
    expectEqual((long) COUNT, consumer.endOffsets(partitions).get(partition));
    expectEqual(0L, consumer.beginningOffsets(partitions).get(partition));
  }
}
