// Runs Oracle's Go SDK against an endpoint, the way its users do, and prints what it saw as one JSON document. Each line
// of its input is a message to be put and read.
// What that must be is said by test_other_sdks.py.
//
//	go run . ENDPOINT CONFIG_FILE COMPARTMENT_ID
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/streaming"
)

const (
	group = "readers of/2026"
	most  = 2 * time.Minute
)

var ctx = context.Background()

type seen map[string]any

func main() {
	endpoint, file, compartment := os.Args[1], os.Args[2], os.Args[3]
	config, err := common.ConfigurationProviderFromFile(file, "")
	must(err)
	admin, err := streaming.NewStreamAdminClientWithConfigurationProvider(config)
	must(err)
	admin.Host = endpoint
	again := common.DefaultRetryPolicyWithoutEventualConsistency()
	retrying := common.CustomClientConfiguration{RetryPolicy: &again}
	admin.SetCustomClientConfiguration(retrying)

	first := create(admin, compartment, "first", 2)
	second := create(admin, compartment, "second", 6)
	client, err := streaming.NewStreamClientWithConfigurationProvider(config, *first.MessagesEndpoint)
	must(err)
	client.SetCustomClientConfiguration(retrying)

	report := seen{
		"lines": follow(client, second),
		"stream": seen{
			"name": first.Name, "partitions": first.Partitions, "retention": first.RetentionInHours,
			"state": first.LifecycleState, "tags": first.FreeformTags,
		},
		"listed": list(admin, compartment),
		"put":    put(client, first.Id),
	}
	report["read"] = read(client, first)
	report["group"] = groups(client, first.Id)
	report["errors"] = failures(client, first.Id)
	report["work request"], report["deleted"] = remove(admin, first.Id)
	remove(admin, second.Id)
	must(json.NewEncoder(os.Stdout).Encode(report))
}

func create(admin streaming.StreamAdminClient, compartment, name string, partitions int) streaming.Stream {
	details := streaming.CreateStreamDetails{
		Name: &name, Partitions: &partitions, CompartmentId: &compartment,
		FreeformTags: map[string]string{"made by": "go"},
	}
	created, err := admin.CreateStream(ctx, streaming.CreateStreamRequest{CreateStreamDetails: details})
	must(err)
	active := func(answer common.OCIOperationResponse) bool {
		found, ok := answer.Response.(streaming.GetStreamResponse)
		return !ok || found.LifecycleState != streaming.StreamLifecycleStateActive
	}
	wait := common.NewRetryPolicy(1000, active, func(common.OCIOperationResponse) time.Duration { return 100 * time.Millisecond })
	found, err := admin.GetStream(ctx, streaming.GetStreamRequest{
		StreamId: created.Id, RequestMetadata: common.RequestMetadata{RetryPolicy: &wait},
	})
	must(err)
	return found.Stream
}

func list(admin streaming.StreamAdminClient, compartment string) []string {
	names := []string{}
	request := streaming.ListStreamsRequest{
		CompartmentId: &compartment, Limit: common.Int(1), LifecycleState: streaming.StreamLifecycleStateActive,
		SortBy: streaming.ListStreamsSortByName, SortOrder: streaming.ListStreamsSortOrderAsc,
	}
	for {
		page, err := admin.ListStreams(ctx, request)
		must(err)
		for _, stream := range page.Items {
			names = append(names, *stream.Name)
		}
		if page.OpcNextPage == nil {
			return names
		}
		request.Page = page.OpcNextPage
	}
}

// follow puts each line of the input as it comes, and reads meanwhile as a member of a group; until it has read them all.
func follow(client streaming.StreamClient, stream streaming.Stream) seen {
	cursor := join(client, stream.Id, "followers", true)
	refused, read, missing := 0, []string{}, map[string]bool{}
	take := func() {
		answer, err := client.GetMessages(ctx, streaming.GetMessagesRequest{StreamId: stream.Id, Cursor: cursor})
		must(err)
		cursor = answer.OpcNextCursor
		for _, message := range answer.Items {
			read = append(read, string(message.Value))
			delete(missing, string(message.Value))
		}
	}
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		line := input.Bytes()
		details := streaming.PutMessagesDetails{Messages: []streaming.PutMessagesDetailsEntry{{Key: line, Value: line}}}
		request := streaming.PutMessagesRequest{StreamId: stream.Id, PutMessagesDetails: details}
		answer, err := client.PutMessages(ctx, request)
		for must(err); *answer.Failures > 0; must(err) {
			refused++
			answer, err = client.PutMessages(ctx, request)
		}
		missing[string(line)] = true
		take()
	}
	must(input.Err())
	for until := time.Now().Add(most); len(missing) > 0 && time.Now().Before(until); {
		take()
	}
	stored := []string{}
	for partition := range *stream.Partitions {
		for _, message := range drain(client, stream.Id, begin(client, stream.Id, strconv.Itoa(partition))) {
			stored = append(stored, string(message.Value))
		}
	}
	return seen{"refused": refused, "read": read, "stored": stored}
}

func put(client streaming.StreamClient, id *string) seen {
	entries := []streaming.PutMessagesDetailsEntry{{Value: []byte("without a key")}}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		entries = append(entries, streaming.PutMessagesDetailsEntry{Key: []byte(name), Value: []byte("of " + name)})
	}
	answer, err := client.PutMessages(ctx, streaming.PutMessagesRequest{
		StreamId: id, PutMessagesDetails: streaming.PutMessagesDetails{Messages: entries},
	})
	must(err)
	errors := 0
	for _, entry := range answer.Entries {
		if entry.Error != nil || entry.Offset == nil || entry.Partition == nil || entry.Timestamp == nil {
			errors++
		}
	}
	return seen{"failures": answer.Failures, "entries": len(answer.Entries), "errors": errors}
}

func read(client streaming.StreamClient, stream streaming.Stream) seen {
	report := seen{}
	pairs := [][2]any{}
	var some streaming.Message
	for _, partition := range []string{"0", "1"} {
		for _, message := range drain(client, stream.Id, begin(client, stream.Id, partition)) {
			var key any
			if message.Key != nil {
				key = string(message.Key)
			}
			pairs = append(pairs, [2]any{key, string(message.Value)})
			some = message
		}
	}
	sort.Slice(pairs, func(a, b int) bool { return pairs[a][1].(string) < pairs[b][1].(string) })
	report["messages"] = pairs

	at := drain(client, stream.Id, cursor(client, stream.Id, streaming.CreateCursorDetails{
		Partition: some.Partition, Type: streaming.CreateCursorDetailsTypeAtOffset, Offset: some.Offset,
	}))
	report["at offset"] = len(at) == 1 && string(at[0].Value) == string(some.Value)
	report["after offset"] = len(drain(client, stream.Id, cursor(client, stream.Id, streaming.CreateCursorDetails{
		Partition: some.Partition, Type: streaming.CreateCursorDetailsTypeAfterOffset, Offset: some.Offset,
	})))
	timed := 0
	for _, partition := range []string{"0", "1"} {
		timed += len(drain(client, stream.Id, cursor(client, stream.Id, streaming.CreateCursorDetails{
			Partition: &partition, Type: streaming.CreateCursorDetailsTypeAtTime, Time: stream.TimeCreated,
		})))
	}
	report["at time"] = timed
	report["latest"] = len(drain(client, stream.Id, cursor(client, stream.Id, streaming.CreateCursorDetails{
		Partition: some.Partition, Type: streaming.CreateCursorDetailsTypeLatest,
	})))
	return report
}

func groups(client streaming.StreamClient, id *string) seen {
	report := seen{}
	joined := join(client, id, group, false)
	first, err := client.GetMessages(ctx, streaming.GetMessagesRequest{StreamId: id, Cursor: joined, Limit: common.Int(100)})
	must(err)
	report["read"] = len(first.Items)
	beat, err := client.ConsumerHeartbeat(ctx, streaming.ConsumerHeartbeatRequest{StreamId: id, Cursor: first.OpcNextCursor})
	must(err)
	committed, err := client.ConsumerCommit(ctx, streaming.ConsumerCommitRequest{StreamId: id, Cursor: beat.Value})
	must(err)
	empty, err := client.GetMessages(ctx, streaming.GetMessagesRequest{StreamId: id, Cursor: committed.Value})
	must(err)
	report["after commit"] = len(empty.Items)

	found, err := client.GetGroup(ctx, streaming.GetGroupRequest{StreamId: id, GroupName: common.String(group)})
	must(err)
	report["name"] = found.GroupName
	reservations := [][3]any{}
	for _, one := range found.Reservations {
		until := one.TimeReservedUntil != nil && one.TimeReservedUntil.After(time.Now())
		reservations = append(reservations, [3]any{one.Partition, one.ReservedInstance, until})
	}
	report["reservations"] = reservations

	_, err = client.UpdateGroup(ctx, streaming.UpdateGroupRequest{
		StreamId: id, GroupName: common.String(group),
		UpdateGroupDetails: streaming.UpdateGroupDetails{Type: streaming.UpdateGroupDetailsTypeTrimHorizon},
	})
	must(err)
	again, err := client.GetMessages(ctx, streaming.GetMessagesRequest{StreamId: id, Cursor: empty.OpcNextCursor})
	must(err)
	report["after update"] = len(again.Items)
	return report
}

func failures(client streaming.StreamClient, id *string) seen {
	unknown := *id + "x"
	_, lost := client.GetMessages(ctx, streaming.GetMessagesRequest{StreamId: &unknown, Cursor: common.String("x")})
	_, garbled := client.GetMessages(ctx, streaming.GetMessagesRequest{StreamId: id, Cursor: common.String("garbage")})
	return seen{"stream": failure(lost), "cursor": failure(garbled)}
}

func failure(err error) []any {
	told, ok := common.IsServiceError(err)
	if !ok {
		must(err)
		panic("no error")
	}
	return []any{told.GetHTTPStatusCode(), told.GetCode(), told.GetMessage()}
}

func remove(admin streaming.StreamAdminClient, id *string) (any, any) {
	answer, err := admin.DeleteStream(ctx, streaming.DeleteStreamRequest{StreamId: id})
	must(err)
	work, err := admin.GetWorkRequest(ctx, streaming.GetWorkRequestRequest{WorkRequestId: answer.OpcWorkRequestId})
	must(err)
	found, err := admin.GetStream(ctx, streaming.GetStreamRequest{StreamId: id})
	must(err)
	return work.Status, found.LifecycleState
}

func join(client streaming.StreamClient, id *string, name string, commit bool) *string {
	created, err := client.CreateGroupCursor(ctx, streaming.CreateGroupCursorRequest{
		StreamId: id, CreateGroupCursorDetails: streaming.CreateGroupCursorDetails{
			Type: streaming.CreateGroupCursorDetailsTypeTrimHorizon, GroupName: &name,
			InstanceName: common.String("one"), CommitOnGet: &commit, TimeoutInMs: common.Int(120000),
		},
	})
	must(err)
	return created.Value
}

func begin(client streaming.StreamClient, id *string, partition string) *string {
	return cursor(client, id, streaming.CreateCursorDetails{
		Partition: &partition, Type: streaming.CreateCursorDetailsTypeTrimHorizon,
	})
}

func cursor(client streaming.StreamClient, id *string, details streaming.CreateCursorDetails) *string {
	answer, err := client.CreateCursor(ctx, streaming.CreateCursorRequest{StreamId: id, CreateCursorDetails: details})
	must(err)
	return answer.Value
}

func drain(client streaming.StreamClient, id, cursor *string) []streaming.Message {
	found := []streaming.Message{}
	for {
		answer, err := client.GetMessages(ctx, streaming.GetMessagesRequest{StreamId: id, Cursor: cursor, Limit: common.Int(2)})
		must(err)
		if len(answer.Items) == 0 {
			return found
		}
		found = append(found, answer.Items...)
		cursor = answer.OpcNextCursor
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
