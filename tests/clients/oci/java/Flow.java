// Runs Oracle's Java SDK against an endpoint, the way its users do, and prints what it saw as one JSON document.
// Each line of its input is a message to be put and read. What it must see is said by test_other_sdks.py.
//
//   java -cp 'target/dependency/*' Flow.java ENDPOINT CONFIG_FILE COMPARTMENT_ID

import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.oracle.bmc.ClientConfiguration;
import com.oracle.bmc.auth.ConfigFileAuthenticationDetailsProvider;
import com.oracle.bmc.model.BmcException;
import com.oracle.bmc.retrier.RetryConfiguration;
import com.oracle.bmc.streaming.StreamAdminClient;
import com.oracle.bmc.streaming.StreamClient;
import com.oracle.bmc.streaming.model.CreateCursorDetails;
import com.oracle.bmc.streaming.model.CreateGroupCursorDetails;
import com.oracle.bmc.streaming.model.CreateStreamDetails;
import com.oracle.bmc.streaming.model.Message;
import com.oracle.bmc.streaming.model.PutMessagesDetails;
import com.oracle.bmc.streaming.model.PutMessagesDetailsEntry;
import com.oracle.bmc.streaming.model.PutMessagesResult;
import com.oracle.bmc.streaming.model.Stream;
import com.oracle.bmc.streaming.model.StreamSummary;
import com.oracle.bmc.streaming.model.UpdateGroupDetails;
import com.oracle.bmc.streaming.requests.ConsumerCommitRequest;
import com.oracle.bmc.streaming.requests.ConsumerHeartbeatRequest;
import com.oracle.bmc.streaming.requests.CreateCursorRequest;
import com.oracle.bmc.streaming.requests.CreateGroupCursorRequest;
import com.oracle.bmc.streaming.requests.CreateStreamRequest;
import com.oracle.bmc.streaming.requests.DeleteStreamRequest;
import com.oracle.bmc.streaming.requests.GetGroupRequest;
import com.oracle.bmc.streaming.requests.GetMessagesRequest;
import com.oracle.bmc.streaming.requests.GetStreamRequest;
import com.oracle.bmc.streaming.requests.ListStreamsRequest;
import com.oracle.bmc.streaming.requests.PutMessagesRequest;
import com.oracle.bmc.streaming.requests.UpdateGroupRequest;
import com.oracle.bmc.waiter.FixedTimeDelayStrategy;
import com.oracle.bmc.waiter.MaxTimeTerminationStrategy;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Date;
import java.util.HashSet;
import java.util.List;
import java.util.Map;

public class Flow {
    private static final String GROUP = "readers of/2026";
    private static final long MOST_MS = 120_000;
    private static final ClientConfiguration RETRYING = ClientConfiguration.builder()
            .retryConfiguration(RetryConfiguration.SDK_DEFAULT_RETRY_CONFIGURATION)
            .build();

    private final StreamAdminClient admin;
    private final String compartment;
    private StreamClient client;

    private Flow(StreamAdminClient admin, String compartment) {
        this.admin = admin;
        this.compartment = compartment;
    }

    public static void main(String[] arguments) throws Exception {
        var provider = new ConfigFileAuthenticationDetailsProvider(arguments[1], "DEFAULT");
        try (var admin = StreamAdminClient.builder().configuration(RETRYING).endpoint(arguments[0]).build(provider)) {
            var report = new Flow(admin, arguments[2]).run(provider);
            System.out.println(new ObjectMapper().writeValueAsString(report));
        }
    }

    private Map<String, Object> run(ConfigFileAuthenticationDetailsProvider provider) throws Exception {
        var first = create("first", 2);
        var second = create("second", 6);
        try (var made = StreamClient.builder().configuration(RETRYING).stream(first).build(provider)) {
            client = made;
            var lines = follow(second);
            var stream = Map.of(
                    "name", first.getName(),
                    "partitions", first.getPartitions(),
                    "retention", first.getRetentionInHours(),
                    "state", first.getLifecycleState().getValue(),
                    "tags", first.getFreeformTags());
            var listed = list();
            var put = put(first.getId());
            var read = read(first);
            var group = groups(first.getId());
            var errors = failures(first.getId());
            var deleted = remove(first.getId());
            remove(second.getId());
            return Map.of(
                    "lines", lines, "stream", stream, "listed", listed, "put", put, "read", read, "group", group,
                    "errors", errors, "deleted", deleted);
        }
    }

    private Stream create(String name, int partitions) throws Exception {
        var details = CreateStreamDetails.builder()
                .name(name)
                .partitions(partitions)
                .compartmentId(compartment)
                .freeformTags(Map.of("made by", "java"))
                .build();
        var created = admin.createStream(CreateStreamRequest.builder().createStreamDetails(details).build());
        return await(created.getStream().getId(), Stream.LifecycleState.Active);
    }

    private Stream await(String id, Stream.LifecycleState state) throws Exception {
        // Waits of milliseconds where the SDK's own would be half a minute.
        var asked = GetStreamRequest.builder().streamId(id).build();
        var end = new MaxTimeTerminationStrategy(MOST_MS);
        return admin.getWaiters().forStream(asked, state, end, new FixedTimeDelayStrategy(100)).execute().getStream();
    }

    private List<String> list() {
        var asked = ListStreamsRequest.builder()
                .compartmentId(compartment)
                .limit(1)
                .lifecycleState(Stream.LifecycleState.Active)
                .sortBy(ListStreamsRequest.SortBy.Name)
                .sortOrder(ListStreamsRequest.SortOrder.Asc)
                .build();
        var names = new ArrayList<String>();
        for (StreamSummary stream : admin.getPaginators().listStreamsRecordIterator(asked)) {
            names.add(stream.getName());
        }
        return names;
    }

    /** Puts each line of the input as it comes, and reads meanwhile as a member of a group; until it has read them all. */
    private Map<String, Object> follow(Stream stream) throws IOException {
        var id = stream.getId();
        var get = GetMessagesRequest.builder().streamId(id).cursor(join(id, "followers", true));
        var read = new ArrayList<String>();
        var missing = new HashSet<String>();
        var refused = 0;
        try (var input = new BufferedReader(new InputStreamReader(System.in, UTF_8))) {
            for (String line; (line = input.readLine()) != null; ) {
                var bytes = line.getBytes(UTF_8);
                var entries = List.of(PutMessagesDetailsEntry.builder().key(bytes).value(bytes).build());
                while (put(id, entries).getFailures() > 0) {
                    refused++;
                }
                missing.add(line);
                missing.removeAll(take(get, read));
            }
        }
        var until = System.currentTimeMillis() + MOST_MS;
        while (!missing.isEmpty() && System.currentTimeMillis() < until) {
            missing.removeAll(take(get, read));
        }
        var stored = new ArrayList<String>();
        for (var partition = 0; partition < stream.getPartitions(); partition++) {
            var start = CreateCursorDetails.builder().partition(String.valueOf(partition));
            stored.addAll(values(drain(id, start.type(CreateCursorDetails.Type.TrimHorizon))));
        }
        return Map.of("refused", refused, "read", read, "stored", stored);
    }

    /** Gets once, with the cursor of the answer before; the values that came, which `read` has too. */
    private List<String> take(GetMessagesRequest.Builder get, List<String> read) {
        var answer = client.getMessages(get.build());
        get.cursor(answer.getOpcNextCursor());
        var came = values(answer.getItems());
        read.addAll(came);
        return came;
    }

    private static List<String> values(List<Message> messages) {
        return messages.stream().map(message -> new String(message.getValue(), UTF_8)).toList();
    }

    private Map<String, Object> put(String id) {
        var entries = new ArrayList<PutMessagesDetailsEntry>();
        entries.add(PutMessagesDetailsEntry.builder().value("without a key".getBytes(UTF_8)).build());
        for (var name : List.of("a", "b", "c", "d", "e", "f")) {
            var value = ("of " + name).getBytes(UTF_8);
            entries.add(PutMessagesDetailsEntry.builder().key(name.getBytes(UTF_8)).value(value).build());
        }
        var answer = put(id, entries);
        var wrong = answer.getEntries().stream()
                .filter(entry -> entry.getError() != null || entry.getOffset() == null
                        || entry.getPartition() == null || entry.getTimestamp() == null)
                .count();
        return Map.of("failures", answer.getFailures(), "entries", answer.getEntries().size(), "errors", wrong);
    }

    private PutMessagesResult put(String id, List<PutMessagesDetailsEntry> entries) {
        var details = PutMessagesDetails.builder().messages(entries).build();
        return client.putMessages(PutMessagesRequest.builder().streamId(id).putMessagesDetails(details).build())
                .getPutMessagesResult();
    }

    private Map<String, Object> read(Stream stream) {
        var type = CreateCursorDetails.Type.TrimHorizon;
        var all = new ArrayList<Message>();
        var timed = 0;
        for (var partition : List.of("0", "1")) {
            var start = CreateCursorDetails.builder().partition(partition);
            all.addAll(drain(stream.getId(), start.type(type)));
            timed += drain(stream.getId(), start.type(CreateCursorDetails.Type.AtTime).time(stream.getTimeCreated())).size();
        }
        var some = all.get(all.size() - 1);
        var there = CreateCursorDetails.builder().partition(some.getPartition());
        var latest = drain(stream.getId(), there.type(CreateCursorDetails.Type.Latest));
        there.offset(some.getOffset());
        var at = drain(stream.getId(), there.type(CreateCursorDetails.Type.AtOffset));
        var after = drain(stream.getId(), there.type(CreateCursorDetails.Type.AfterOffset));
        var pairs = all.stream()
                .map(message -> Arrays.asList(
                        message.getKey() == null ? null : new String(message.getKey(), UTF_8),
                        new String(message.getValue(), UTF_8)))
                .sorted(Comparator.comparing(pair -> pair.get(1)))
                .toList();
        return Map.of(
                "messages", pairs,
                "at offset", at.size() == 1 && Arrays.equals(at.get(0).getValue(), some.getValue()),
                "after offset", after.size(),
                "at time", timed,
                "latest", latest.size());
    }

    private Map<String, Object> groups(String id) {
        var get = GetMessagesRequest.builder().streamId(id);
        var first = client.getMessages(get.cursor(join(id, GROUP, false)).limit(100).build());
        var beat = client.consumerHeartbeat(
                ConsumerHeartbeatRequest.builder().streamId(id).cursor(first.getOpcNextCursor()).build());
        var committed = client.consumerCommit(
                ConsumerCommitRequest.builder().streamId(id).cursor(beat.getCursor().getValue()).build());
        var empty = client.getMessages(get.cursor(committed.getCursor().getValue()).limit(null).build());
        var group = client.getGroup(GetGroupRequest.builder().streamId(id).groupName(GROUP).build()).getGroup();
        var start = UpdateGroupDetails.builder().type(UpdateGroupDetails.Type.TrimHorizon).build();
        client.updateGroup(
                UpdateGroupRequest.builder().streamId(id).groupName(GROUP).updateGroupDetails(start).build());
        var again = client.getMessages(get.cursor(empty.getOpcNextCursor()).build());
        var reservations = group.getReservations().stream()
                .map(one -> List.of(
                        one.getPartition(), one.getReservedInstance(), one.getTimeReservedUntil().after(new Date())))
                .toList();
        return Map.of(
                "read", first.getItems().size(),
                "after commit", empty.getItems().size(),
                "name", group.getGroupName(),
                "reservations", reservations,
                "after update", again.getItems().size());
    }

    private String join(String id, String group, boolean commit) {
        var details = CreateGroupCursorDetails.builder()
                .type(CreateGroupCursorDetails.Type.TrimHorizon)
                .groupName(group)
                .instanceName("one")
                .commitOnGet(commit)
                .timeoutInMs(120_000)
                .build();
        return client.createGroupCursor(
                        CreateGroupCursorRequest.builder().streamId(id).createGroupCursorDetails(details).build())
                .getCursor()
                .getValue();
    }

    private Map<String, Object> failures(String id) {
        var get = GetMessagesRequest.builder();
        return Map.of(
                "stream", failure(get.streamId(id + "x").cursor("x").build()),
                "cursor", failure(get.streamId(id).cursor("garbage").build()));
    }

    private List<Object> failure(GetMessagesRequest request) {
        try {
            client.getMessages(request);
        } catch (BmcException error) {
            return List.of(error.getStatusCode(), error.getServiceCode(), error.getUnmodifiedMessage());
        }
        throw new IllegalStateException("no error");
    }

    private String remove(String id) throws Exception {
        admin.deleteStream(DeleteStreamRequest.builder().streamId(id).build());
        return await(id, Stream.LifecycleState.Deleted).getLifecycleState().getValue();
    }

    private List<Message> drain(String id, CreateCursorDetails.Builder details) {
        var cursor = client.createCursor(
                        CreateCursorRequest.builder().streamId(id).createCursorDetails(details.build()).build())
                .getCursor()
                .getValue();
        var found = new ArrayList<Message>();
        while (true) {
            var answer = client.getMessages(GetMessagesRequest.builder().streamId(id).cursor(cursor).limit(2).build());
            if (answer.getItems().isEmpty()) {
                return found;
            }
            found.addAll(answer.getItems());
            cursor = answer.getOpcNextCursor();
        }
    }
}
