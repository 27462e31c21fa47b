import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a share group (KIP-932) that does what each line of its input says, and ends with its input. It answers
 * with lines, of which the last is a period.
 *
 * - `poll MS`: waits for records. Prints `record PARTITION:OFFSET DELIVERIES VALUE` for each.
 * - `accept`, `release`, `reject` or `renew`, and places as `PARTITION:OFFSET`: acknowledges those records.
 * - `commit`: sends the acknowledgements. Prints `committed PARTITION`, with the name of an error.
 *
 * Arguments: bootstrap servers, group, topic, and settings as NAME=VALUE.
 */
public final class ShareMember {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        Arrays.stream(arguments).skip(3).map(one -> one.split("=", 2)).forEach(one -> settings.put(one[0], one[1]));
        var deserializer = new StringDeserializer();
        var input = new BufferedReader(new InputStreamReader(System.in));
        Map<String, ConsumerRecord<String, String>> polled = new LinkedHashMap<>();
        try (KafkaShareConsumer<String, String> consumer =
                new KafkaShareConsumer<>(settings, deserializer, deserializer)) {
            consumer.subscribe(List.of(arguments[2]));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                String[] words = line.split(" ");
                try {
                    switch (words[0]) {
                        case "poll" -> poll(consumer, Long.parseLong(words[1]), polled);
                        case "commit" -> consumer.commitSync().forEach((place, error) -> System.out.println(
                            "committed " + place.partition()
                                + error.map(one -> " " + one.getClass().getSimpleName()).orElse("")));
                        default -> Arrays.stream(words).skip(1).map(polled::get).forEach(
                            record -> consumer.acknowledge(record, AcknowledgeType.valueOf(words[0].toUpperCase())));
                    }
                } catch (org.apache.kafka.common.KafkaException | IllegalStateException error) {
                    System.out.println("error " + error.getClass().getSimpleName());
                }
                System.out.println(".");
            }
        }
    }

    private static void poll(
            KafkaShareConsumer<String, String> consumer,
            long patienceMs,
            Map<String, ConsumerRecord<String, String>> polled) {
        long end = System.currentTimeMillis() + patienceMs;
        var records = consumer.poll(Duration.ofMillis(patienceMs));
        // It returns early, and without records, where acknowledgements were answered.
        while (records.isEmpty() && System.currentTimeMillis() < end) {
            records = consumer.poll(Duration.ofMillis(Math.max(1, end - System.currentTimeMillis())));
        }
        for (ConsumerRecord<String, String> record : records) {
            String place = record.partition() + ":" + record.offset();
            polled.put(place, record);
            System.out.println("record " + place + " " + record.deliveryCount().orElse((short) 0) + " " + record.value());
        }
    }
}
