// Encodes and decodes a value with each format, and registers an incompatible schema.
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry");

const value = { id: "a", count: 3 };
const fields = [{ name: "id", type: "string" }, { name: "count", type: "int" }];
const schemas = {
  avro: { type: SchemaType.AVRO, schema: JSON.stringify({ type: "record", name: "Order", namespace: "js", fields }) },
  json: {
    type: SchemaType.JSON,
    schema: JSON.stringify({ type: "object", properties: { id: { type: "string" }, count: { type: "integer" } } }),
  },
  protobuf: {
    type: SchemaType.PROTOBUF,
    schema: 'syntax = "proto3"; package js; message Order { string id = 1; int32 count = 2; }',
  },
};

async function main(host) {
  const registry = new SchemaRegistry({ host });
  const found = {};
  for (const [name, schema] of Object.entries(schemas)) {
    const { id } = await registry.register(schema, { subject: `js-${name}-value` });
    const encoded = await registry.encode(id, value);
    const decoded = await new SchemaRegistry({ host }).decode(encoded);
    found[name] = { id: decoded.id, count: decoded.count };
  }
  const wrong = { type: "record", name: "Order", namespace: "js", fields: [{ name: "new", type: "int" }] };
  try {
    await registry.register({ type: SchemaType.AVRO, schema: JSON.stringify(wrong) }, { subject: "js-avro-value" });
  } catch (error) {
    found.refused = error.status;
  }
  console.log(JSON.stringify(found));
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
