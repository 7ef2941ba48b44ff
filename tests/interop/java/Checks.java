import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What every group of checks stands on: one connection for administration, clients, expectations, and the report.
 *
 * <p>Each check prints one line: its outcome (ok, FAIL or skip), its name and, unless it passed, the reason, with tabs
 * between them. A failed check never ends the run.
 */
abstract class Checks {
  private static final long READ_MS_MAX = 20_000;
  private static final long WAIT_MS_MAX = 10_000;

  final Admin admin;
  private final String bootstrap;

  Checks(String bootstrap, Admin admin) {
    this.bootstrap = bootstrap;
    this.admin = admin;
  }

  abstract void run() throws Exception;

  interface Body {
    void run() throws Exception;
  }

  interface Condition {
    boolean holds() throws Exception;
  }

  /** A check that does not apply to this release of the client, and why. */
  static final class NotInThisClient extends RuntimeException {
    NotInThisClient(String reason) {
      super(reason);
    }
  }

  static void check(String name, Body body) {
    try {
      body.run();
      report("ok", name, "");
    } catch (NotInThisClient reason) {
      report("skip", name, reason.getMessage());
    } catch (ExecutionException failure) {
      report("FAIL", name, String.valueOf(failure.getCause()));
    } catch (Exception | AssertionError failure) {
      report("FAIL", name, String.valueOf(failure));
    }
  }

  private static void report(String outcome, String name, String reason) {
    System.out.println(outcome + "\t" + name + "\t" + String.valueOf(reason).replaceAll("\\s+", " "));
  }

  static void expect(boolean condition, String otherwise) {
    if (!condition) {
      throw new AssertionError(otherwise);
    }
  }

  static void expectEqual(Object expected, Object found) {
    expect(Objects.equals(expected, found), "expected " + expected + ", found " + found);
  }

  /** The call must fail with this error from the broker. */
  static void expectError(Class<? extends Exception> type, Callable<?> call) throws Exception {
    Object answer;
    try {
      answer = call.call();
    } catch (ExecutionException failure) {
      Throwable cause = failure.getCause();
      expect(type.isInstance(cause), "expected " + type.getSimpleName() + ", found " + cause);
      return;
    }
    throw new AssertionError("expected " + type.getSimpleName() + ", found " + answer);
  }

  /** Brokers learn of a change a little after the controller has acknowledged it. */
  static void waitUntil(String what, Condition condition) throws Exception {
    long deadline = System.currentTimeMillis() + WAIT_MS_MAX;
    while (!condition.holds()) {
      expect(System.currentTimeMillis() < deadline, "not within " + WAIT_MS_MAX + " ms: " + what);
      Thread.sleep(20);
    }
  }

  /** A name that no earlier check has used. */
  static String newName(String prefix) {
    return prefix + "-" + UUID.randomUUID();
  }

  /** Makes a topic with one partition and these settings, and waits until the broker serves it. */
  TopicPartition newTopic(String prefix, Map<String, String> settings) throws Exception {
    String name = newName(prefix);
    admin.createTopics(List.of(new NewTopic(name, 1, (short) 1).configs(settings))).all().get();
    waitForPartitions(name, 1);
    return new TopicPartition(name, 0);
  }

  TopicPartition newTopic(String prefix) throws Exception {
    return newTopic(prefix, Map.of());
  }

  void waitForPartitions(String topic, int count) throws Exception {
    waitUntil(topic + " has " + count + " partitions", () -> partitionCount(topic) == count);
  }

  /** How many partitions the broker shows; 0 while it does not know the topic. */
  int partitionCount(String topic) throws Exception {
    if (!admin.listTopics().names().get().contains(topic)) {
      return 0;
    }
    return admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
  }

  KafkaProducer<byte[], byte[]> producer(String... settings) {
    return new KafkaProducer<>(properties(settings), new ByteArraySerializer(), new ByteArraySerializer());
  }

  KafkaConsumer<byte[], byte[]> consumer(String... settings) {
    return new KafkaConsumer<>(properties(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  /** A consumer that stands at the beginning of these partitions; no group is involved. */
  KafkaConsumer<byte[], byte[]> readerOf(List<TopicPartition> partitions, String... settings) {
    KafkaConsumer<byte[], byte[]> reader = consumer(settings);
    reader.assign(partitions);
    reader.seekToBeginning(partitions);
    return reader;
  }

  private Properties properties(String... settings) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    for (int i = 0; i < settings.length; i += 2) {
      properties.put(settings[i], settings[i + 1]);
    }
    return properties;
  }

  /** Polls until there are as many records as expected; fails when they do not come, or when more do. */
  static List<ConsumerRecord<byte[], byte[]>> read(KafkaConsumer<byte[], byte[]> consumer, int count) {
    List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
    long deadline = System.currentTimeMillis() + READ_MS_MAX;
    while (records.size() < count && System.currentTimeMillis() < deadline) {
      consumer.poll(Duration.ofMillis(200)).forEach(records::add);
    }
    expectEqual(count, records.size());
    return records;
  }

  static byte[] bytes(String text) {
    return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
  }

  static String text(byte[] bytes) {
    return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
  }
}
