// Fetch requests through KafkaJS's inner modules: its public consumer always joins a group.
const Cluster = require("kafkajs/src/cluster");
const createSocketFactory = require("kafkajs/src/network/socketFactory");
const { createLogger } = require("kafkajs/src/loggers");

const READ_COMMITTED = 1;

async function connectToLeader(bootstrap, topic) {
  const cluster = new Cluster({
    logger: createLogger({ level: 0, logCreator: () => () => {} }),
    socketFactory: createSocketFactory(),
    brokers: [bootstrap],
    clientId: "fetcher",
    ssl: false,
    connectionTimeout: 3000,
    authenticationTimeout: 3000,
    requestTimeout: 30_000,
    enforceRequestTimeout: true,
    metadataMaxAge: 1_000_000,
    allowAutoTopicCreation: false,
    maxInFlightRequests: 1,
    isolationLevel: READ_COMMITTED,
    offsets: new Map(),
  });
  await cluster.connect();
  await cluster.addTargetTopic(topic);
  const [nodeId] = Object.keys(cluster.findLeaderForPartitions(topic, [0]));
  const broker = await cluster.findBroker({ nodeId });
  return {
    // The records of one answer, from this offset on.
    async fetchFrom(offset) {
      const partition = { partition: 0, currentLeaderEpoch: -1, fetchOffset: offset, maxBytes: 30_000 };
      const answer = await broker.fetch({
        maxWaitTime: 500,
        minBytes: 1,
        maxBytes: 1_000_000,
        isolationLevel: READ_COMMITTED,
        topics: [{ topic, partitions: [partition] }],
      });
      // An answer begins with a whole batch, which may have begun before the offset.
      return answer.responses[0].partitions[0].messages.filter((record) => Number(record.offset) >= offset);
    },
    disconnect: () => cluster.disconnect(),
  };
}

module.exports = { connectToLeader };
