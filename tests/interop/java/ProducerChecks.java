import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.utils.AppInfoParser;

/** What the broker refuses of a producer, and what it changes in what it takes. */
final class ProducerChecks extends Checks {
  ProducerChecks(String bootstrap, Admin admin) {
    super(bootstrap, admin);
  }

  @Override
  void run() {
    sizes();
    timestamps();
    topicRules();
    topicNames();
  }

  private static ProducerRecord<byte[], byte[]> valueOnly(TopicPartition partition, byte[] value) {
    return new ProducerRecord<>(partition.topic(), value);
  }

  private void sizes() {
    check("a record over max.message.bytes is refused, and the next one taken", () -> {
      TopicPartition partition = newTopic("limited", Map.of("max.message.bytes", "2000"));
      try (KafkaProducer<byte[], byte[]> producer = producer("max.request.size", "10000000")) {
        expectError(
            RecordTooLargeException.class, () -> producer.send(valueOnly(partition, new byte[5000])).get());
        expectEqual(0L, producer.send(valueOnly(partition, new byte[500])).get().offset());
      }
    });
    check("records of 8 MB", () -> {
      TopicPartition partition = newTopic("large", Map.of("max.message.bytes", "20000000"));
      byte[] value = new byte[8_000_000];
      new Random(1).nextBytes(value);
      try (KafkaProducer<byte[], byte[]> producer =
          producer("max.request.size", "20000000", "buffer.memory", "100000000")) {
        for (int i = 0; i < 3; i++) {
          producer.send(valueOnly(partition, value)).get();
        }
      }
      try (KafkaConsumer<byte[], byte[]> consumer = readerOf(List.of(partition))) {
        for (ConsumerRecord<byte[], byte[]> record : read(consumer, 3)) {
          expect(Arrays.equals(value, record.value()), "offset " + record.offset() + " holds other bytes");
        }
      }
    });
    check("a batch over max.message.bytes is split by the producer", () -> {
      if (AppInfoParser.getVersion().startsWith("3.")) {
        throw new NotInThisClient("this client lets the records expire instead, on Apache Kafka too");
      }
      TopicPartition partition = newTopic("split", Map.of("max.message.bytes", "3000"));
      List<Future<RecordMetadata>> answers = new ArrayList<>();
      Set<Long> offsets = new TreeSet<>();
      try (KafkaProducer<byte[], byte[]> producer = producer("batch.size", "100000", "linger.ms", "200")) {
        for (int i = 0; i < 50; i++) {
          answers.add(producer.send(valueOnly(partition, new byte[500])));
        }
        for (Future<RecordMetadata> answer : answers) {
          offsets.add(answer.get().offset());
        }
      }
      expectEqual(50, offsets.size());
    });
  }

  private void timestamps() {
    check("LogAppendTime replaces the producer's timestamp", () -> {
      TopicPartition partition = newTopic("append-time", Map.of("message.timestamp.type", "LogAppendTime"));
      long before = System.currentTimeMillis();
      try (KafkaProducer<byte[], byte[]> producer = producer("compression.type", "lz4")) {
        RecordMetadata answer =
            producer.send(new ProducerRecord<>(partition.topic(), 0, 5L, null, bytes("a"))).get();
        expect(answer.timestamp() >= before, "the producer was told " + answer.timestamp());
      }
      try (KafkaConsumer<byte[], byte[]> consumer = readerOf(List.of(partition))) {
        ConsumerRecord<byte[], byte[]> record = read(consumer, 1).get(0);
        expectEqual(TimestampType.LOG_APPEND_TIME, record.timestampType());
        expect(record.timestamp() >= before, "the consumer was told " + record.timestamp());
      }
    });
    check("a timestamp too far in the future is refused", () -> {
      TopicPartition partition = newTopic("future");
      long inTwoHours = System.currentTimeMillis() + 7_200_000L;
      try (KafkaProducer<byte[], byte[]> producer = producer()) {
        expectError(
            InvalidTimestampException.class,
            () -> producer.send(new ProducerRecord<>(partition.topic(), 0, inTwoHours, null, bytes("a"))).get());
      }
    });
  }

  private void topicRules() {
    check("a record without a key is refused by a compacted topic", () -> {
      TopicPartition partition = newTopic("compacted", Map.of("cleanup.policy", "compact"));
      try (KafkaProducer<byte[], byte[]> producer = producer()) {
        expectError(
            InvalidRecordException.class, () -> producer.send(valueOnly(partition, bytes("a"))).get());
        ProducerRecord<byte[], byte[]> keyed = new ProducerRecord<>(partition.topic(), bytes("k"), bytes("a"));
        expectEqual(0L, producer.send(keyed).get().offset());
      }
    });
    check("a topic's compression.type leaves what is read the same", () -> {
      TopicPartition partition = newTopic("recompressed", Map.of("compression.type", "zstd"));
      try (KafkaProducer<byte[], byte[]> producer = producer("linger.ms", "50")) {
        for (int i = 0; i < 100; i++) {
          producer.send(valueOnly(partition, bytes("v" + i)));
        }
      }
      try (KafkaConsumer<byte[], byte[]> consumer = readerOf(List.of(partition))) {
        List<ConsumerRecord<byte[], byte[]>> records = read(consumer, 100);
        for (int i = 0; i < 100; i++) {
          expectEqual("v" + i, text(records.get(i).value()));
        }
      }
    });
  }

  private void topicNames() {
    check("a producer makes the topic that it writes to", () -> {
      try (KafkaProducer<byte[], byte[]> producer = producer()) {
        TopicPartition partition = new TopicPartition(newName("made-by-producer"), 0);
        expectEqual(0L, producer.send(valueOnly(partition, bytes("a"))).get().offset());
      }
    });
    check("a producer is told that a topic name is invalid", () -> {
      try (KafkaProducer<byte[], byte[]> producer = producer("max.block.ms", "5000")) {
        expectError(
            InvalidTopicException.class,
            () -> producer.send(new ProducerRecord<>("no/such", bytes("a"))).get());
      }
    });
  }
}
