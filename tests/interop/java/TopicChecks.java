import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeClusterResult;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The cluster, and topics from creation to deletion. */
final class TopicChecks extends Checks {
  private static final String UNKNOWN = "no-such-topic";
  private int node;
  private String topic;

  TopicChecks(String bootstrap, Admin admin) {
    super(bootstrap, admin);
  }

  @Override
  void run() throws Exception {
    node = admin.describeCluster().nodes().get().iterator().next().id();
    topic = newName("topics");
    cluster();
    creation();
    refusedCreation();
    assignments();
    description();
    partitions();
    deletion();
  }

  private Void create(NewTopic wanted) throws Exception {
    return admin.createTopics(List.of(wanted)).all().get();
  }

  private static NewTopic onePartition(String name) {
    return new NewTopic(name, 1, (short) 1);
  }

  private void cluster() {
    check("describeCluster", () -> {
      DescribeClusterResult cluster =
          admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true));
      expect(cluster.clusterId().get() != null, "no cluster id");
      expectEqual(1, cluster.nodes().get().size());
      expect(cluster.controller().get() != null, "no controller");
      expect(!cluster.authorizedOperations().get().isEmpty(), "no authorized operations");
    });
    check("describeFeatures", () ->
        expect(
            admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("metadata.version"),
            "metadata.version is not among the finalized features"));
  }

  private void creation() {
    check("createTopics answers with what was made", () -> {
      NewTopic wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "1000000"));
      CreateTopicsResult made = admin.createTopics(List.of(wanted));
      expectEqual(3, made.numPartitions(topic).get());
      expectEqual(1, made.replicationFactor(topic).get());
      expectEqual("1000000", made.config(topic).get().get("retention.ms").value());
      expect(!made.topicId(topic).get().equals(Uuid.ZERO_UUID), "the topic id is zero");
      waitForPartitions(topic, 3);
    });
    check("createTopics with the broker's defaults", () -> {
      String name = newName("defaults");
      create(new NewTopic(name, Optional.empty(), Optional.empty()));
      waitForPartitions(name, 1);
    });
    check("createTopics only validates", () -> {
      String name = newName("validated");
      admin.createTopics(List.of(onePartition(name)), new CreateTopicsOptions().validateOnly(true)).all().get();
      expect(!admin.listTopics().names().get().contains(name), "the topic was made");
    });
  }

  private void refusedCreation() {
    check("createTopics refuses a topic that exists", () ->
        expectError(TopicExistsException.class, () -> create(new NewTopic(topic, 3, (short) 1))));
    check("createTopics refuses more replicas than brokers", () ->
        expectError(
            InvalidReplicationFactorException.class, () -> create(new NewTopic(newName("x"), 1, (short) 3))));
    check("createTopics refuses zero partitions", () ->
        expectError(InvalidPartitionsException.class, () -> create(new NewTopic(newName("x"), 0, (short) 1))));
    check("createTopics refuses an invalid name", () ->
        expectError(InvalidTopicException.class, () -> create(onePartition("bad name!"))));
    check("createTopics refuses an unknown setting", () ->
        expectError(
            InvalidConfigurationException.class,
            () -> create(onePartition(newName("x")).configs(Map.of("no.such", "1")))));
    check("createTopics refuses an invalid value", () ->
        expectError(
            InvalidConfigurationException.class,
            () -> create(onePartition(newName("x")).configs(Map.of("retention.ms", "abc")))));
    check("createTopics refuses names that differ in . and _ only", () -> {
      String stem = "collision" + UUID.randomUUID().toString().replace("-", "");
      create(onePartition(stem + ".a"));
      expectError(InvalidTopicException.class, () -> create(onePartition(stem + "_a")));
    });
  }

  private void assignments() {
    check("createTopics with an assignment", () -> {
      String name = newName("assigned");
      create(new NewTopic(name, Map.of(0, List.of(node), 1, List.of(node))));
      waitForPartitions(name, 2);
    });
    check("createTopics refuses an assignment to an unknown broker", () ->
        expectError(
            InvalidReplicaAssignmentException.class,
            () -> create(new NewTopic(newName("x"), Map.of(0, List.of(node, 77))))));
    check("createTopics refuses a gap in the assignment", () ->
        expectError(
            InvalidReplicaAssignmentException.class,
            () -> create(new NewTopic(newName("x"), Map.of(1, List.of(node))))));
  }

  private void description() {
    check("listTopics", () ->
        expect(
            admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get().contains(topic),
            "the topic is not listed"));
    check("describeTopics by name and by id", () -> {
      DescribeTopicsOptions options = new DescribeTopicsOptions().includeAuthorizedOperations(true);
      TopicDescription found = admin.describeTopics(List.of(topic), options).allTopicNames().get().get(topic);
      expectEqual(3, found.partitions().size());
      expect(found.authorizedOperations() != null, "no authorized operations");
      Uuid id = found.topicId();
      TopicCollection byId = TopicCollection.ofTopicIds(List.of(id));
      expectEqual(topic, admin.describeTopics(byId).allTopicIds().get().get(id).name());
    });
    check("describeTopics of an unknown name", () ->
        expectError(
            UnknownTopicOrPartitionException.class,
            () -> admin.describeTopics(List.of(UNKNOWN)).allTopicNames().get()));
    check("describeTopics of an unknown id", () -> {
      TopicCollection unknown = TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()));
      expectError(UnknownTopicIdException.class, () -> admin.describeTopics(unknown).allTopicIds().get());
    });
    check("describeTopics in pages", () -> {
      List<NewTopic> wanted = new ArrayList<>();
      for (int i = 0; i < 5; i++) {
        wanted.add(new NewTopic(newName("paged" + i), 7, (short) 1));
      }
      admin.createTopics(wanted).all().get();
      List<String> names = wanted.stream().map(NewTopic::name).toList();
      for (String name : names) {
        waitForPartitions(name, 7);
      }
      DescribeTopicsOptions options = new DescribeTopicsOptions().partitionSizeLimitPerResponse(4);
      Collection<TopicDescription> found =
          admin.describeTopics(names, options).allTopicNames().get().values();
      expectEqual(5, found.size());
      for (TopicDescription description : found) {
        expectEqual(7, description.partitions().size());
      }
    });
    check("describeLogDirs", () -> {
      Map<String, LogDirDescription> dirs = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
      expectEqual(1, dirs.size());
      LogDirDescription dir = dirs.values().iterator().next();
      expect(dir.totalBytes().orElse(0) > 0, "no size of the volume");
      expect(dir.replicaInfos().containsKey(new TopicPartition(topic, 0)), "the partition is not listed");
    });
  }

  private Void growTo(String name, NewPartitions wanted) throws Exception {
    return admin.createPartitions(Map.of(name, wanted)).all().get();
  }

  private void partitions() {
    check("createPartitions", () -> {
      growTo(topic, NewPartitions.increaseTo(5));
      waitForPartitions(topic, 5);
    });
    check("createPartitions refuses fewer", () ->
        expectError(InvalidPartitionsException.class, () -> growTo(topic, NewPartitions.increaseTo(2))));
    check("createPartitions refuses as many", () ->
        expectError(InvalidPartitionsException.class, () -> growTo(topic, NewPartitions.increaseTo(5))));
    check("createPartitions refuses an assignment to an unknown broker", () ->
        expectError(
            InvalidReplicaAssignmentException.class,
            () -> growTo(topic, NewPartitions.increaseTo(6, List.of(List.of(99))))));
    check("createPartitions of an unknown topic", () ->
        expectError(
            UnknownTopicOrPartitionException.class, () -> growTo(UNKNOWN, NewPartitions.increaseTo(2))));
  }

  private void deletion() {
    check("deleteTopics by id", () -> {
      String name = newName("deleted");
      TopicCollection id =
          TopicCollection.ofTopicIds(
              List.of(admin.createTopics(List.of(onePartition(name))).topicId(name).get()));
      waitForPartitions(name, 1);
      admin.deleteTopics(id).all().get();
      waitForPartitions(name, 0);
      expectError(UnknownTopicIdException.class, () -> admin.deleteTopics(id).all().get());
    });
    check("deleteTopics of an unknown name", () ->
        expectError(
            UnknownTopicOrPartitionException.class, () -> admin.deleteTopics(List.of(UNKNOWN)).all().get()));
  }
}
