// KafkaJS: administration, producing, and fetching without a group.
const assert = require("node:assert");
const { Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, logLevel } = require("kafkajs");
const SnappyCodec = require("kafkajs-snappy");
const { check, newName, waitUntil } = require("./checks.js");
const { connectToLeader } = require("./kafkajs_fetch.js");

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec;

const CODECS = [
  ["none", CompressionTypes.None],
  ["gzip", CompressionTypes.GZIP],
  ["snappy", CompressionTypes.Snappy],
];
const DELIVERIES = [
  { acks: 0, idempotent: false },
  { acks: 1, idempotent: false },
  { acks: -1, idempotent: false },
  { acks: -1, idempotent: true },
];
const BATCHES = 5;
const BATCH_RECORDS = 100;
const TOTAL = CODECS.length * DELIVERIES.length * BATCHES * BATCH_RECORDS;
const DELETED = 10;

const bootstrap = process.argv[2];
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.NOTHING });
const admin = kafka.admin();
const topic = newName("kafkajs");
const topicResource = { type: ConfigResourceTypes.TOPIC, name: topic };

// Every batch holds the same records, so that an offset says what must stand there.
const keyAt = (offset) => `k${offset % BATCH_RECORDS}`;
const valueAt = (offset) => (offset % BATCH_RECORDS % 7 ? `v${offset % BATCH_RECORDS}` : null);
const timestampAt = (offset) => String(1000 + (offset % BATCH_RECORDS));

async function offsetsOfPartition0() {
  return (await admin.fetchTopicOffsets(topic)).find((entry) => entry.partition === 0);
}

async function topics() {
  await check("createTopics", async () => {
    const configEntries = [{ name: "retention.ms", value: "1000000" }];
    const made = await admin.createTopics({ topics: [{ topic, numPartitions: 2, configEntries }] });
    assert.strictEqual(made, true);
  });
  await check("createTopics of a topic that exists", async () => {
    assert.strictEqual(await admin.createTopics({ topics: [{ topic }] }), false);
  });
  await check("createTopics only validates", async () => {
    const name = newName("validated");
    const request = { validateOnly: true, waitForLeaders: false, topics: [{ topic: name }] };
    assert.strictEqual(await admin.createTopics(request), true);
    assert(!(await admin.listTopics()).includes(name));
  });
  await check("createTopics refuses a name that comes twice", async () => {
    const twice = { topic: newName("twice") };
    await assert.rejects(admin.createTopics({ topics: [twice, twice] }));
  });
  await check("listTopics", async () => {
    assert((await admin.listTopics()).includes(topic));
  });
  await check("fetchTopicMetadata", async () => {
    const metadata = await admin.fetchTopicMetadata({ topics: [topic] });
    assert.strictEqual(metadata.topics[0].partitions.length, 2);
  });
  await check("fetchTopicMetadata of an unknown topic", async () => {
    await assert.rejects(admin.fetchTopicMetadata({ topics: [newName("unknown")] }));
  });
  await check("createPartitions", async () => {
    await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] });
    await waitUntil("the topic has 3 partitions", async () => {
      const metadata = await admin.fetchTopicMetadata({ topics: [topic] });
      return metadata.topics[0].partitions.length === 3;
    });
  });
  await check("describeCluster", async () => {
    const cluster = await admin.describeCluster();
    assert.strictEqual(cluster.brokers.length, 1);
    assert(cluster.clusterId);
  });
}

async function configs() {
  const entriesOf = async (request) => (await admin.describeConfigs(request)).resources[0].configEntries;
  await check("describeConfigs", async () => {
    const entries = await entriesOf({ includeSynonyms: true, resources: [topicResource] });
    assert.strictEqual(entries.find((entry) => entry.configName === "retention.ms").configValue, "1000000");
  });
  await check("alterConfigs replaces every setting", async () => {
    const configEntries = [{ name: "cleanup.policy", value: "compact" }];
    await admin.alterConfigs({ resources: [{ ...topicResource, configEntries }] });
    const names = ["cleanup.policy", "retention.ms"];
    await waitUntil("retention.ms has its default again", async () => {
      const entries = await entriesOf({ resources: [{ ...topicResource, configNames: names }] });
      assert.strictEqual(entries.length, 2);
      return entries.find((entry) => entry.configName === "retention.ms").isDefault;
    });
    await admin.alterConfigs({ resources: [{ ...topicResource, configEntries: [] }] });
  });
}

async function produce(compression, { acks, idempotent }) {
  const producer = kafka.producer({ idempotent, maxInFlightRequests: 1 });
  await producer.connect();
  const messages = Array.from({ length: BATCH_RECORDS }, (_, number) => ({
    partition: 0,
    key: keyAt(number),
    value: valueAt(number),
    headers: { several: ["1", "2"], bytes: Buffer.from("x") },
    timestamp: timestampAt(number),
  }));
  for (let batch = 0; batch < BATCHES; batch++) {
    await producer.send({ topic, acks, compression, messages });
  }
  await producer.disconnect();
}

async function producing() {
  for (const [codec, compression] of CODECS) {
    for (const delivery of DELIVERIES) {
      const name = `produce ${codec} acks=${delivery.acks} idempotent=${delivery.idempotent}`;
      await check(name, () => produce(compression, delivery));
    }
  }
  await check("a producer makes the topic that it writes to", async () => {
    const name = newName("made-by-producer");
    const producer = kafka.producer();
    await producer.connect();
    await producer.send({ topic: name, messages: [{ value: "a" }] });
    await producer.disconnect();
    assert((await admin.listTopics()).includes(name));
  });
}

async function reading() {
  await check("fetchTopicOffsets", async () => {
    await waitUntil(`the log ends at ${TOTAL}`, async () => (await offsetsOfPartition0()).offset === String(TOTAL));
  });
  await check("fetchTopicOffsetsByTimestamp", async () => {
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, 1050);
    assert.strictEqual(found.find((entry) => entry.partition === 0).offset, "50");
  });
  await check("deleteTopicRecords", async () => {
    await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: String(DELETED) }] });
    assert.strictEqual((await offsetsOfPartition0()).low, String(DELETED));
  });
  await check("every record is fetched as it was written", async () => {
    const leader = await connectToLeader(bootstrap, topic);
    let next = DELETED;
    while (next < TOTAL) {
      const records = await leader.fetchFrom(next);
      assert(records.length > 0, `nothing at offset ${next}`);
      for (const record of records) {
        assert.strictEqual(record.offset, String(next));
        assert.strictEqual(record.key.toString(), keyAt(next));
        assert.strictEqual(record.value && record.value.toString(), valueAt(next));
        assert.strictEqual(record.timestamp, timestampAt(next));
        next++;
      }
    }
    assert.strictEqual(next, TOTAL);
    await leader.disconnect();
  });
  await check("deleteTopics", async () => {
    await admin.deleteTopics({ topics: [topic] });
    await waitUntil("the topic is gone", async () => !(await admin.listTopics()).includes(topic));
  });
}

async function main() {
  await admin.connect();
  await topics();
  await configs();
  await producing();
  await reading();
  await admin.disconnect();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
