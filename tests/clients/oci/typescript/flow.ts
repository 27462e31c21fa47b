// Runs Oracle's TypeScript SDK against an endpoint, the way its users do, and prints what it saw as one JSON document.
// Each line of its input is a message to be put and read. What it must see is said by test_other_sdks.py.
//
//   node built/flow.js ENDPOINT CONFIG_FILE COMPARTMENT_ID

import * as common from "oci-common";
import * as streaming from "oci-streaming";
import * as readline from "readline";

type Json = Record<string, unknown>;
const { CreateCursorDetails, CreateGroupCursorDetails, Stream, UpdateGroupDetails } = streaming.models;

const GROUP = "readers of/2026";
const MOST_MS = 120_000;
const RETRYING = { retryConfiguration: common.OciSdkDefaultRetryConfiguration };
const [endpoint, file, compartmentId] = process.argv.slice(2);
const provider = new common.ConfigFileAuthenticationDetailsProvider(file);
// Waits of milliseconds where the SDK's own would be half a minute.
const waiting = {
  terminationStrategy: new common.MaxTimeTerminationStrategy(MOST_MS / 1000),
  delayStrategy: new common.FixedTimeDelayStrategy(0.1),
};

async function main(): Promise<void> {
  const admin = new streaming.StreamAdminClient({ authenticationDetailsProvider: provider }, RETRYING);
  admin.endpoint = endpoint;
  admin.createWaiters(waiting);

  const first = await create(admin, "first", 2);
  const second = await create(admin, "second", 6);
  const client = new streaming.StreamClient({ authenticationDetailsProvider: provider }, RETRYING);
  client.endpoint = first.messagesEndpoint;

  const report: Json = {
    lines: await follow(client, second),
    stream: {
      name: first.name,
      partitions: first.partitions,
      retention: first.retentionInHours,
      state: first.lifecycleState,
      tags: first.freeformTags,
    },
    listed: await list(admin),
    put: await put(client, first.id),
    read: await read(client, first),
    group: await groups(client, first.id),
    errors: await failures(client, first.id),
    ...(await remove(admin, first.id)),
  };
  await remove(admin, second.id);
  console.log(JSON.stringify(report));
}

async function create(admin: streaming.StreamAdminClient, name: string, partitions: number) {
  const createStreamDetails = { name, partitions, compartmentId, freeformTags: { "made by": "typescript" } };
  const created = await admin.createStream({ createStreamDetails });
  const found = await admin.getWaiters().forStream({ streamId: created.stream.id }, Stream.LifecycleState.Active);
  return found!.stream;
}

async function list(admin: streaming.StreamAdminClient): Promise<string[]> {
  const names: string[] = [];
  let page: string | undefined;
  do {
    const answer = await admin.listStreams({
      compartmentId,
      limit: 1,
      lifecycleState: Stream.LifecycleState.Active,
      sortBy: streaming.requests.ListStreamsRequest.SortBy.Name,
      sortOrder: streaming.requests.ListStreamsRequest.SortOrder.Asc,
      page,
    });
    names.push(...answer.items.map((stream) => stream.name));
    page = answer.opcNextPage || undefined;
  } while (page);
  return names;
}

/** Puts each line of the input as it comes, and reads meanwhile as a member of a group; until it has read them all. */
async function follow(client: streaming.StreamClient, stream: streaming.models.Stream): Promise<Json> {
  const streamId = stream.id;
  let cursor = await join(client, streamId, "followers", true);
  const read: string[] = [];
  const missing = new Set<string>();
  const take = async () => {
    const answer = await client.getMessages({ streamId, cursor });
    cursor = answer.opcNextCursor;
    for (const value of answer.items.map((message) => decoded(message.value))) {
      read.push(value);
      missing.delete(value);
    }
  };
  let refused = 0;
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const putMessagesDetails = { messages: [{ key: encoded(line), value: encoded(line) }] };
    while ((await client.putMessages({ streamId, putMessagesDetails })).putMessagesResult.failures > 0) {
      refused++;
    }
    missing.add(line);
    await take();
  }
  for (const until = Date.now() + MOST_MS; missing.size > 0 && Date.now() < until; ) {
    await take();
  }
  const stored: string[] = [];
  for (let partition = 0; partition < stream.partitions; partition++) {
    const createCursorDetails = { partition: `${partition}`, type: CreateCursorDetails.Type.TrimHorizon };
    const answer = await client.createCursor({ streamId, createCursorDetails });
    stored.push(...(await drain(client, streamId, answer.cursor.value)).map((message) => decoded(message.value)));
  }
  return { refused, read, stored };
}

async function put(client: streaming.StreamClient, streamId: string): Promise<Json> {
  const messages: streaming.models.PutMessagesDetailsEntry[] = [{ value: encoded("without a key") }];
  for (const name of ["a", "b", "c", "d", "e", "f"]) {
    messages.push({ key: encoded(name), value: encoded("of " + name) });
  }
  const { putMessagesResult } = await client.putMessages({ streamId, putMessagesDetails: { messages } });
  const wrong = putMessagesResult.entries.filter(
    (entry) => entry.error || entry.offset === undefined || !entry.partition || !entry.timestamp,
  );
  return { failures: putMessagesResult.failures, entries: putMessagesResult.entries.length, errors: wrong.length };
}

async function read(client: streaming.StreamClient, stream: streaming.models.Stream): Promise<Json> {
  const from = async (partition: string, details: Omit<streaming.models.CreateCursorDetails, "partition">) => {
    const createCursorDetails = { ...details, partition };
    const answer = await client.createCursor({ streamId: stream.id, createCursorDetails });
    return drain(client, stream.id, answer.cursor.value);
  };
  const { Type } = CreateCursorDetails;
  const all = [...(await from("0", { type: Type.TrimHorizon })), ...(await from("1", { type: Type.TrimHorizon }))];
  const some = all[all.length - 1];
  const at = await from(some.partition, { type: Type.AtOffset, offset: some.offset });
  const after = await from(some.partition, { type: Type.AfterOffset, offset: some.offset });
  const time = stream.timeCreated;
  const timed = [...(await from("0", { type: Type.AtTime, time })), ...(await from("1", { type: Type.AtTime, time }))];
  const latest = await from(some.partition, { type: Type.Latest });
  return {
    messages: all
      .map((message) => [message.key ? decoded(message.key) : null, decoded(message.value)])
      .sort((a, b) => (a[1]! < b[1]! ? -1 : 1)),
    "at offset": at.length === 1 && at[0].value === some.value,
    "after offset": after.length,
    "at time": timed.length,
    latest: latest.length,
  };
}

async function groups(client: streaming.StreamClient, streamId: string): Promise<Json> {
  const joined = await join(client, streamId, GROUP, false);
  const first = await client.getMessages({ streamId, cursor: joined, limit: 100 });
  const beat = await client.consumerHeartbeat({ streamId, cursor: first.opcNextCursor });
  const committed = await client.consumerCommit({ streamId, cursor: beat.cursor.value });
  const empty = await client.getMessages({ streamId, cursor: committed.cursor.value });
  const { group } = await client.getGroup({ streamId, groupName: GROUP });
  await client.updateGroup({
    streamId,
    groupName: GROUP,
    updateGroupDetails: { type: UpdateGroupDetails.Type.TrimHorizon },
  });
  const again = await client.getMessages({ streamId, cursor: empty.opcNextCursor });
  return {
    read: first.items.length,
    "after commit": empty.items.length,
    name: group.groupName,
    reservations: group.reservations!.map((one) => [
      one.partition,
      one.reservedInstance,
      new Date(one.timeReservedUntil!) > new Date(),
    ]),
    "after update": again.items.length,
  };
}

async function join(client: streaming.StreamClient, streamId: string, groupName: string, commitOnGet: boolean) {
  const created = await client.createGroupCursor({
    streamId,
    createGroupCursorDetails: {
      type: CreateGroupCursorDetails.Type.TrimHorizon,
      groupName,
      instanceName: "one",
      commitOnGet,
      timeoutInMs: 120_000,
    },
  });
  return created.cursor.value;
}

async function failures(client: streaming.StreamClient, streamId: string): Promise<Json> {
  return {
    stream: await failure(client.getMessages({ streamId: streamId + "x", cursor: "x" })),
    cursor: await failure(client.getMessages({ streamId, cursor: "garbage" })),
  };
}

async function failure(call: Promise<unknown>): Promise<unknown[]> {
  try {
    await call;
  } catch (error) {
    if (error instanceof common.OciError) {
      return [error.statusCode, error.serviceCode, error.message];
    }
    throw error;
  }
  throw new Error("no error");
}

async function remove(admin: streaming.StreamAdminClient, streamId: string): Promise<Json> {
  const { opcWorkRequestId } = await admin.deleteStream({ streamId });
  const work = await admin.getWorkRequest({ workRequestId: opcWorkRequestId });
  const found = await admin.getWaiters().forStream({ streamId }, Stream.LifecycleState.Deleted);
  return { "work request": work.workRequest.status, deleted: found!.stream.lifecycleState };
}

async function drain(client: streaming.StreamClient, streamId: string, cursor: string) {
  const found: streaming.models.Message[] = [];
  for (;;) {
    const answer = await client.getMessages({ streamId, cursor, limit: 2 });
    if (answer.items.length === 0) {
      return found;
    }
    found.push(...answer.items);
    cursor = answer.opcNextCursor;
  }
}

function encoded(text: string): string {
  return Buffer.from(text).toString("base64");
}

function decoded(text: string): string {
  return Buffer.from(text, "base64").toString();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
