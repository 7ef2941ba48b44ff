import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigSource;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigType;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidRequestException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Settings of topics, of one broker and of all brokers. */
final class ConfigChecks extends Checks {
  private static final String RETENTION = "log.retention.ms";
  private static final ConfigResource EVERY_BROKER = new ConfigResource(ConfigResource.Type.BROKER, "");
  private ConfigResource broker;
  private ConfigResource topic;

  ConfigChecks(String bootstrap, Admin admin) {
    super(bootstrap, admin);
  }

  @Override
  void run() throws Exception {
    int node = admin.describeCluster().nodes().get().iterator().next().id();
    broker = new ConfigResource(ConfigResource.Type.BROKER, String.valueOf(node));
    topic =
        new ConfigResource(
            ConfigResource.Type.TOPIC, newTopic("configs", Map.of("retention.ms", "1000000")).topic());
    description();
    topicChanges();
    brokerChanges();
  }

  private Config describe(ConfigResource resource) throws Exception {
    return admin.describeConfigs(List.of(resource)).all().get().get(resource);
  }

  private Void alter(ConfigResource resource, AlterConfigOp... changes) throws Exception {
    return admin.incrementalAlterConfigs(Map.of(resource, List.of(changes))).all().get();
  }

  private static AlterConfigOp change(OpType type, String name, String value) {
    return new AlterConfigOp(new ConfigEntry(name, value), type);
  }

  private void waitForValue(ConfigResource resource, String name, String value) throws Exception {
    waitUntil(name + " is " + value, () -> {
      ConfigEntry entry = describe(resource).get(name); // for every broker, only what has been set is listed
      return entry != null && value.equals(entry.value());
    });
  }

  private void description() {
    check("describeConfigs of a topic", () -> {
      DescribeConfigsOptions options =
          new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
      ConfigEntry entry =
          admin.describeConfigs(List.of(topic), options).all().get().get(topic).get("retention.ms");
      expectEqual("1000000", entry.value());
      expectEqual(ConfigSource.DYNAMIC_TOPIC_CONFIG, entry.source());
      expectEqual(ConfigType.LONG, entry.type());
      expect(entry.documentation() != null, "no documentation");
      expectEqual("retention.ms", entry.synonyms().get(0).name());
    });
    check("describeConfigs of a broker", () -> {
      Config config = describe(broker);
      expect(config.entries().size() > 100, "only " + config.entries().size() + " settings");
      expectEqual(broker.name(), config.get("node.id").value());
    });
    check("describeConfigs of an unknown topic", () -> {
      ConfigResource unknown = new ConfigResource(ConfigResource.Type.TOPIC, "no-such-topic");
      expectError(UnknownTopicOrPartitionException.class, () -> describe(unknown));
    });
    check("listConfigResources", () -> {
      Object listing;
      try { // by reflection: the older client does not have it
        listing = Admin.class.getMethod("listConfigResources").invoke(admin);
      } catch (NoSuchMethodException missing) {
        throw new NotInThisClient("Admin has no listConfigResources");
      }
      KafkaFuture<?> all = (KafkaFuture<?>) listing.getClass().getMethod("all").invoke(listing);
      expect(((Collection<?>) all.get()).contains(topic), "the topic is not listed");
    });
  }

  private void topicChanges() {
    check("incrementalAlterConfigs sets, appends, subtracts and deletes", () -> {
      alter(
          topic,
          change(OpType.APPEND, "cleanup.policy", "compact"),
          change(OpType.DELETE, "retention.ms", ""),
          change(OpType.SET, "max.message.bytes", "2000"));
      waitForValue(topic, "max.message.bytes", "2000");
      expectEqual("delete,compact", describe(topic).get("cleanup.policy").value());
      expectEqual(true, describe(topic).get("retention.ms").isDefault());
      alter(topic, change(OpType.SUBTRACT, "cleanup.policy", "compact"));
      waitForValue(topic, "cleanup.policy", "delete");
    });
    check("incrementalAlterConfigs refuses an invalid value", () ->
        expectError(
            InvalidConfigurationException.class, () -> alter(topic, change(OpType.SET, "retention.ms", "x"))));
    check("incrementalAlterConfigs refuses to append to what is no list", () ->
        expectError(
            InvalidConfigurationException.class,
            () -> alter(topic, change(OpType.APPEND, "retention.ms", "1"))));
  }

  private void brokerChanges() {
    check("incrementalAlterConfigs of one broker", () -> {
      alter(broker, change(OpType.SET, RETENTION, "123456789"));
      try {
        waitForValue(broker, RETENTION, "123456789");
        expectEqual(ConfigSource.DYNAMIC_BROKER_CONFIG, describe(broker).get(RETENTION).source());
      } finally {
        alter(broker, change(OpType.DELETE, RETENTION, ""));
      }
    });
    check("incrementalAlterConfigs of every broker reaches brokers and topics", () -> {
      alter(EVERY_BROKER, change(OpType.SET, RETENTION, "987654321"));
      try {
        waitForValue(EVERY_BROKER, RETENTION, "987654321");
        waitForValue(broker, RETENTION, "987654321");
        expectEqual(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, describe(broker).get(RETENTION).source());
        waitForValue(topic, "retention.ms", "987654321");
      } finally {
        alter(EVERY_BROKER, change(OpType.DELETE, RETENTION, ""));
      }
    });
    check("incrementalAlterConfigs refuses a setting that needs a restart", () ->
        expectError(InvalidRequestException.class, () -> alter(broker, change(OpType.SET, "node.id", "9"))));
  }
}
