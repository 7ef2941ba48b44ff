// Makes a topic and writes numbered records with KafkaJS; reading by group comes with consumer groups.
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [bootstrap, topic, count] = process.argv.slice(2);
const total = Number(count);

async function main() {
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR });
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }] });
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let first = 0; first < total; first += 500) {
    const messages = Array.from({ length: Math.min(500, total - first) }, (_, i) => ({
      key: "node",
      value: String(first + i),
      headers: { origin: "kafkajs" },
    }));
    await producer.send({ topic, acks: -1, compression: CompressionTypes.GZIP, messages });
  }
  await producer.disconnect();
  const [offsets] = await admin.fetchTopicOffsets(topic);
  await admin.disconnect();
  if (offsets.high !== String(total)) throw new Error(`the log ends at ${offsets.high}, expected ${total}`);
  console.log("ok", total);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
