// Java's transactional clients: records and offsets in transactions, aborts, and a fenced producer.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    static final int LIMIT_MS = 60_000;
    static String address;

    static KafkaProducer<String, String> producer(String id) {
        Properties given = new Properties();
        given.put("bootstrap.servers", address);
        given.put("transactional.id", id);
        var made = new KafkaProducer<>(given, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    static KafkaConsumer<String, String> consumer(String group) {
        Properties given = new Properties();
        given.put("bootstrap.servers", address);
        given.put("group.id", group);
        given.put("isolation.level", "read_committed");
        given.put("auto.offset.reset", "earliest");
        given.put("enable.auto.commit", "false");
        given.put("max.poll.records", "7");
        return new KafkaConsumer<>(given, new StringDeserializer(), new StringDeserializer());
    }

    /** Every fourth transaction of 5 records is aborted. */
    static void write(String topic) {
        try (var producer = producer("writer")) {
            for (int transaction = 0; transaction < 20; transaction++) {
                producer.beginTransaction();
                for (int number = 0; number < 5; number++) {
                    producer.send(new ProducerRecord<>(topic, "key", transaction + "-" + number));
                }
                if (transaction % 4 == 3) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            producer.beginTransaction();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.commitTransaction();
        }
    }

    static void copy(String source, String target, int count) {
        try (var consumer = consumer("copiers"); var producer = producer("copier")) {
            consumer.subscribe(List.of(source));
            long end = System.currentTimeMillis() + LIMIT_MS;
            for (int done = 0; done < count && System.currentTimeMillis() < end; ) {
                var records = consumer.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (var each : records) {
                    producer.send(new ProducerRecord<>(target, each.key(), each.value()));
                    offsets.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
                    done++;
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
            }
        }
    }

    /** Returns whether a second producer fences the first. */
    static boolean fence(String target) throws Exception {
        var first = producer("fenced");
        first.beginTransaction();
        first.send(new ProducerRecord<>(target, "key", "fenced")).get();
        boolean fenced = false;
        try (var second = producer("fenced")) {
            try {
                first.commitTransaction();
            } catch (ProducerFencedException expected) {
                fenced = true;
            }
            second.beginTransaction();
            second.send(new ProducerRecord<>(target, "key", "kept"));
            second.commitTransaction();
        }
        first.close(Duration.ZERO);
        return fenced;
    }

    static List<String> read(String topic, int count) {
        List<String> found = new ArrayList<>();
        try (var reader = consumer("readers")) {
            reader.assign(List.of(new TopicPartition(topic, 0)));
            long end = System.currentTimeMillis() + LIMIT_MS;
            while (found.size() < count && System.currentTimeMillis() < end) {
                for (var each : reader.poll(Duration.ofMillis(300))) {
                    found.add(each.value());
                }
            }
        }
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        address = arguments[0];
        write(arguments[1]);
        copy(arguments[1], arguments[2], 75);
        boolean fenced = fence(arguments[2]);
        System.out.println(fenced + " " + String.join(",", read(arguments[2], 76)));
    }
}
