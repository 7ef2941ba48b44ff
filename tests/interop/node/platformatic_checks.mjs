// @platformatic/kafka, a client without KafkaJS's or librdkafka's code: administration and producing.
import assert from "node:assert";
import zlib from "node:zlib";
import { Admin, ProduceAcks, Producer, stringSerializers } from "@platformatic/kafka";
import checks from "./checks.js";

const { check, newName, skip } = checks;

const CODECS = ["none", "gzip", "snappy", "lz4", "zstd"];
const BATCH_RECORDS = 50;
const TOPIC_RESOURCE = 2;
const LATEST = -1n;

const bootstrapBrokers = [process.argv[2]];
const topic = newName("platformatic");
const admin = new Admin({ clientId: "admin", bootstrapBrokers });
let written = 0;

async function produce(compression, idempotent) {
  const producer = new Producer({
    clientId: "producer",
    bootstrapBrokers,
    serializers: stringSerializers,
    idempotent,
    compression,
    acks: ProduceAcks.ALL,
  });
  const messages = Array.from({ length: BATCH_RECORDS }, (_, number) => ({
    topic,
    partition: 0,
    key: `k${number}`,
    value: `v${number}`,
    headers: { origin: "platformatic" },
  }));
  const answer = await producer.send({ messages });
  assert.equal(answer.offsets.length, 1);
  assert.equal(answer.offsets[0].offset, BigInt(written));
  written += BATCH_RECORDS;
  await producer.close();
}

await check("createTopics", async () => {
  const [made] = await admin.createTopics({ topics: [topic], partitions: 2, replicas: 1 });
  assert.equal(made.partitions, 2);
});
await check("listTopics", async () => {
  assert((await admin.listTopics()).includes(topic));
});
await check("metadata", async () => {
  const metadata = await admin.metadata({ topics: [topic] });
  assert.equal(metadata.topics.get(topic).partitionsCount, 2);
});
for (const codec of CODECS) {
  for (const idempotent of [false, true]) {
    const name = `produce ${codec} idempotent=${idempotent}`;
    if (codec === "zstd" && !zlib.zstdCompressSync) {
      skip(name, "this release of Node has no zstd");
    } else {
      await check(name, () => produce(codec, idempotent));
    }
  }
}
await check("describeConfigs", async () => {
  const [found] = await admin.describeConfigs({
    resources: [{ resourceType: TOPIC_RESOURCE, resourceName: topic, configurationKeys: ["retention.ms"] }],
    includeSynonyms: true,
    includeDocumentation: true,
  });
  assert.equal(found.configs.length, 1);
});
await check("describeLogDirs", async () => {
  const found = await admin.describeLogDirs({ topics: [{ name: topic, partitions: [0, 1] }] });
  assert.equal(found.length, 1);
});
await check("createPartitions", async () => {
  await admin.createPartitions({ topics: [{ name: topic, count: 4 }] });
});
await check("listOffsets", async () => {
  const partitions = [{ partitionIndex: 0, timestamp: LATEST }];
  const [found] = await admin.listOffsets({ topics: [{ name: topic, partitions }] });
  assert.equal(found.partitions[0].offset, BigInt(written));
});
await check("deleteRecords", async () => {
  await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset: 10n }] }] });
});
await check("deleteTopics", async () => {
  await admin.deleteTopics({ topics: [topic] });
  assert(!(await admin.listTopics()).includes(topic));
});
await admin.close();
process.exit(0);
