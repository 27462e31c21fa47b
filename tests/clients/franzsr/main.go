// Uses a schema registry with franz-go's client: registers, looks up, compares and deletes schemas, and sends a record
// whose value franz-go's Serde encodes. Prints what it found as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
)

const avro = `{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"string"},{"name":"count","type":"int"}]}`
const wider = `{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"id","type":"string"},{"name":"count","type":"int"},{"name":"note","type":"string","default":""}]}`
const wrong = `{"type":"record","name":"Order","namespace":"shop","fields":[{"name":"new","type":"int"}]}`
const order = `{"$schema":"http://json-schema.org/draft-07/schema#","title":"Order","type":"object","properties":{"id":{"type":"string"},"count":{"type":"integer"}}}`
const line = `syntax = "proto3"; package shop; message Line { int32 quantity = 1; }`
const withLine = `syntax = "proto3"; package shop; import "line.proto"; message Order { string id = 1; Line line = 2; }`

type Order struct {
	ID    string `json:"id"`
	Count int    `json:"count"`
}

func must[T any](found T, err error) T {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%+v\n", err)
		os.Exit(1)
	}
	return found
}

func code(err error) int {
	var refused *sr.ResponseError
	if errors.As(err, &refused) {
		return refused.ErrorCode
	}
	return 0
}

func main() {
	kafka, url := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	registry := must(sr.NewClient(sr.URLs(url)))
	found := map[string]any{}

	found["types"] = must(registry.SupportedTypes(ctx))
	first := must(registry.CreateSchema(ctx, "go-value", sr.Schema{Schema: avro}))
	again := must(registry.CreateSchema(ctx, "go-value", sr.Schema{Schema: avro}))
	found["same"] = first.ID == again.ID && first.Version == 1 && first.Version == again.Version
	known := must(registry.LookupSchema(ctx, "go-value", sr.Schema{Schema: avro}))
	found["lookup"] = known.ID == first.ID && known.Version == 1
	_, err := registry.LookupSchema(ctx, "go-value", sr.Schema{Schema: wrong})
	found["unknown"] = code(err)
	found["by_id"] = must(registry.SchemaByID(ctx, first.ID)).Schema == avro

	found["compatible"] = must(registry.CheckCompatibility(ctx, "go-value", -1, sr.Schema{Schema: wider})).Is
	checked := must(registry.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), "go-value", -1, sr.Schema{Schema: wrong}))
	found["incompatible"] = !checked.Is && len(checked.Messages) > 0
	_, err = registry.CreateSchema(ctx, "go-value", sr.Schema{Schema: wrong})
	found["refused"] = code(err)
	for _, set := range registry.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatNone}, "go-value") {
		must(set, set.Err)
	}
	found["level"] = registry.Compatibility(ctx, "go-value")[0].Level.String()
	must(registry.CreateSchema(ctx, "go-value", sr.Schema{Schema: wrong}))
	found["versions"] = must(registry.SubjectVersions(ctx, "go-value"))
	for _, set := range registry.SetMode(ctx, sr.ModeReadOnly, "go-value") {
		must(set, set.Err)
	}
	_, err = registry.CreateSchema(ctx, "go-value", sr.Schema{Schema: wider})
	found["read_only"] = code(err)

	must(registry.CreateSchema(ctx, "line", sr.Schema{Schema: line, Type: sr.TypeProtobuf}))
	imported := must(registry.CreateSchema(ctx, "go-proto-value", sr.Schema{
		Schema: withLine, Type: sr.TypeProtobuf, References: []sr.SchemaReference{{Name: "line.proto", Subject: "line", Version: 1}},
	}))
	found["references"] = must(registry.SchemaReferences(ctx, "line", 1))[0].ID == imported.ID

	found["sent"] = sent(ctx, kafka, registry)

	for _, set := range registry.ResetMode(ctx, "go-value") {
		must(set, set.Err)
	}
	found["deleted"] = must(registry.DeleteSubject(ctx, "go-value", sr.SoftDelete))
	_, err = registry.SubjectVersions(ctx, "go-value")
	found["gone"] = code(err)
	must(registry.DeleteSubject(ctx, "go-value", sr.HardDelete))
	found["subjects"] = must(registry.Subjects(sr.WithParams(ctx, sr.ShowDeleted)))
	must(0, json.NewEncoder(os.Stdout).Encode(found))
}

// sent returns a value that was produced with the ID of its schema, and consumed by a client that asks the registry.
func sent(ctx context.Context, kafka string, registry *sr.Client) Order {
	schema := must(registry.CreateSchema(ctx, "go-json-value", sr.Schema{Schema: order, Type: sr.TypeJSON}))
	var serde sr.Serde
	serde.Register(schema.ID, Order{}, sr.EncodeFn(json.Marshal), sr.DecodeFn(json.Unmarshal))
	client := must(kgo.NewClient(
		kgo.SeedBrokers(kafka), kgo.ConsumeTopics("go-json"), kgo.AllowAutoTopicCreation(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	))
	defer client.Close()
	record := &kgo.Record{Topic: "go-json", Value: must(serde.Encode(Order{"a", 3}))}
	must(client.ProduceSync(ctx, record).First())
	fetched := client.PollRecords(ctx, 1)
	for _, failed := range fetched.Errors() {
		must(0, failed.Err)
	}
	value := fetched.Records()[0].Value
	id, _, err := serde.DecodeID(value)
	must(id, err)
	must(registry.SchemaByID(ctx, id))
	var got Order
	must(0, serde.Decode(value, &got))
	return got
}
