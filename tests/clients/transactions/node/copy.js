// Copies records from a topic to another one, exactly once: two members of a group read committed records, and write
// them with their offsets in transactions. Every fourth transaction is aborted. Ends when all records have been copied.
const { Kafka, logLevel } = require("kafkajs");

async function main(broker, source, target, group, wanted) {
  const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR });
  let [copied, transactions] = [0, 0];
  let finished;
  const done = new Promise((resolve) => (finished = resolve));

  async function member(number) {
    const consumer = kafka.consumer({ groupId: group, maxBytesPerPartition: 1000, heartbeatInterval: 500 });
    const options = { transactionalId: `kafkajs-${number}`, maxInFlightRequests: 1, idempotent: true };
    const producer = kafka.producer(options);
    await Promise.all([consumer.connect(), producer.connect()]);
    await consumer.subscribe({ topics: [source], fromBeginning: true });
    // One at a time: a producer has one transaction.
    await consumer.run({
      autoCommit: false,
      partitionsConsumedConcurrently: 1,
      eachBatchAutoResolve: false,
      eachBatch: async ({ batch, isStale }) => {
        if (isStale() || batch.messages.length === 0) return;
        const transaction = await producer.transaction();
        const messages = batch.messages.map(({ key, value }) => ({ key, value }));
        await transaction.send({ topic: target, messages });
        const next = (BigInt(batch.lastOffset()) + 1n).toString();
        const partitions = [{ partition: batch.partition, offset: next }];
        await transaction.sendOffsets({ consumerGroupId: group, topics: [{ topic: source, partitions }] });
        transactions += 1;
        if (transactions % 4 === 0) {
          await transaction.abort();
          consumer.seek({ topic: source, partition: batch.partition, offset: batch.firstOffset() });
          return;
        }
        await transaction.commit();
        consumer.seek({ topic: source, partition: batch.partition, offset: next });
        copied += messages.length;
        if (copied >= wanted) finished();
      },
    });
    return async () => {
      await consumer.disconnect();
      await producer.disconnect();
    };
  }

  const leave = await Promise.all([member(0), member(1)]);
  await done;
  await Promise.all(leave.map((each) => each()));
  console.log(`${copied} ${transactions}`);
}

const [broker, source, target, group, wanted] = process.argv.slice(2);
main(broker, source, target, group, Number(wanted)).catch((error) => {
  console.error(error);
  process.exit(1);
});
