import java.time.Duration;
import java.util.List;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/** Consumers that choose their partitions themselves: metadata, fetch sessions, and topics that come and go. */
final class ConsumerChecks extends Checks {
  private static final int MANY = 50;

  ConsumerChecks(String bootstrap, Admin admin) {
    super(bootstrap, admin);
  }

  @Override
  void run() {
    metadata();
    check("a topic is deleted and made again under a producer and a consumer", this::topicMadeAgain);
    check("a fetch session over many partitions", this::manyPartitions);
    check("read_committed without transactions", () -> {
      TopicPartition partition = newTopic("committed");
      try (KafkaProducer<byte[], byte[]> producer = producer();
          KafkaConsumer<byte[], byte[]> consumer =
              readerOf(List.of(partition), "isolation.level", "read_committed")) {
        write(producer, partition.topic(), "committed", 10);
        read(consumer, 10);
        expectEqual(10L, consumer.endOffsets(List.of(partition)).get(partition));
      }
    });
  }

  private static void write(KafkaProducer<byte[], byte[]> producer, String topic, String prefix, int count)
      throws Exception {
    for (int i = 0; i < count; i++) {
      producer.send(new ProducerRecord<>(topic, bytes(prefix + i))).get();
    }
  }

  private void metadata() {
    check("partitionsFor and listTopics", () -> {
      TopicPartition partition = newTopic("listed");
      try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
        expectEqual(1, consumer.partitionsFor(partition.topic()).size());
        expect(consumer.listTopics().containsKey(partition.topic()), "the topic is not listed");
      }
    });
    check("a consumer makes the topic that it reads", () -> {
      TopicPartition partition = new TopicPartition(newName("made-by-consumer"), 0);
      try (KafkaConsumer<byte[], byte[]> consumer = readerOf(List.of(partition))) {
        waitUntil("the topic exists", () -> {
          consumer.poll(Duration.ofMillis(100));
          return admin.listTopics().names().get().contains(partition.topic());
        });
        expectEqual(0L, consumer.position(partition));
      }
    });
  }

  private void topicMadeAgain() throws Exception {
    TopicPartition partition = newTopic("again");
    String topic = partition.topic();
    try (KafkaProducer<byte[], byte[]> producer =
            producer("delivery.timeout.ms", "30000", "request.timeout.ms", "5000");
        KafkaConsumer<byte[], byte[]> consumer =
            readerOf(List.of(partition), "auto.offset.reset", "earliest", "metadata.max.age.ms", "1000")) {
      write(producer, topic, "before", 5);
      read(consumer, 5);
      admin.deleteTopics(List.of(topic)).all().get();
      waitForPartitions(topic, 0);
      admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
      write(producer, topic, "after", 3);
      List<ConsumerRecord<byte[], byte[]>> records = read(consumer, 3);
      for (int i = 0; i < 3; i++) {
        expectEqual("after" + i, text(records.get(i).value()));
      }
    }
  }

  private void manyPartitions() throws Exception {
    String topic = newName("many");
    admin.createTopics(List.of(new NewTopic(topic, MANY, (short) 1))).all().get();
    waitForPartitions(topic, MANY);
    List<TopicPartition> all = IntStream.range(0, MANY).mapToObj(i -> new TopicPartition(topic, i)).toList();
    List<TopicPartition> paused = all.subList(0, MANY / 2);
    try (KafkaProducer<byte[], byte[]> producer = producer();
        KafkaConsumer<byte[], byte[]> consumer = readerOf(all)) {
      for (int round = 0; round < 3; round++) {
        writeToEach(producer, all);
        read(consumer, MANY);
      }
      consumer.pause(paused);
      writeToEach(producer, all);
      for (ConsumerRecord<byte[], byte[]> record : read(consumer, MANY - paused.size())) {
        expect(record.partition() >= paused.size(), "partition " + record.partition() + " is paused");
      }
      consumer.resume(paused);
      read(consumer, paused.size());
      List<TopicPartition> few = all.subList(0, 10);
      consumer.assign(few);
      consumer.seekToBeginning(few);
      read(consumer, 10 * 4);
    }
  }

  private static void writeToEach(KafkaProducer<byte[], byte[]> producer, List<TopicPartition> partitions) {
    for (TopicPartition partition : partitions) {
      producer.send(new ProducerRecord<>(partition.topic(), partition.partition(), null, bytes("one")));
    }
    producer.flush();
  }
}
