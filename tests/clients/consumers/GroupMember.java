import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a consumer group (KIP-848). It prints `assigned` with its partitions after each change, and `record` with
 * each value, and commits after each poll. The end of its input ends it.
 *
 * Arguments: bootstrap servers, group, topic or `~` and a pattern, instance ID or nothing. With the property `strategy`,
 * the name of an assignor, it is a classic member.
 */
public final class GroupMember {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", arguments[1]);
        String strategy = System.getProperty("strategy");
        settings.put("group.protocol", strategy == null ? "consumer" : "classic");
        if (strategy != null) {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + strategy);
        }
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (arguments.length > 3) {
            settings.put("group.instance.id", arguments[3]);
        }
        AtomicBoolean over = new AtomicBoolean();
        Thread input = new Thread(() -> {
            try {
                while (new BufferedReader(new InputStreamReader(System.in)).readLine() != null) { }
            } catch (java.io.IOException gone) {
                // It ends, too.
            }
            over.set(true);
        });
        input.setDaemon(true);
        input.start();
        var deserializer = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, deserializer, deserializer)) {
            Set<String> owned = new TreeSet<>();
            ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                    partitions.forEach(one -> owned.add(one.toString()));
                    say();
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                    partitions.forEach(one -> owned.remove(one.toString()));
                    say();
                }

                private void say() {
                    System.out.println("assigned " + String.join(" ", owned));
                }
            };
            if (arguments[2].startsWith("~")) {
                consumer.subscribe(new SubscriptionPattern(arguments[2].substring(1)), listener);
            } else {
                consumer.subscribe(Set.of(arguments[2]), listener);
            }
            while (!over.get()) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<String, String> record : records) {
                    System.out.println("record " + record.value());
                }
                if (!records.isEmpty()) {
                    consumer.commitSync();
                }
            }
        } catch (org.apache.kafka.common.KafkaException error) {
            System.out.println("error " + error.getClass().getSimpleName());
        }
    }
}
