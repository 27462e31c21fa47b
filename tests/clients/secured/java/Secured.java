import java.io.FileInputStream;
import java.io.InputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
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
 * Prints the values as a JSON list. Where it is not let in, or does not believe the server, it prints why and ends
 * with status 3.
 */
public final class Secured {
    private static final int REFUSED = 3;
    private static final long MOST_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        Properties given = new Properties();
        try (InputStream file = new FileInputStream(arguments[0])) {
            given.load(file);
        }
        String topic = arguments[1];
        List<String> values = List.of(arguments).subList(2, arguments.length);
        try {
            write(given, topic, values);
            System.out.println(read(given, topic, values.size()));
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
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(given, new StringSerializer(), new StringSerializer())) {
            for (String value : values) {
                producer.send(new ProducerRecord<>(topic, value)).get();
            }
        }
    }

    private static String read(Properties given, String topic, int count) {
        Properties all = new Properties();
        all.putAll(given);
        all.put("group.id", topic);
        all.put("auto.offset.reset", "earliest");
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer =
                new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            long until = System.currentTimeMillis() + MOST_MS;
            while (found.size() < count && System.currentTimeMillis() < until) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofSeconds(1))) {
                    found.add('"' + record.value() + '"');
                }
            }
        }
        return found.toString();
    }

    private Secured() {}
}
