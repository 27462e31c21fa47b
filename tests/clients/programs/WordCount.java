// Kafka Streams counts words in a state store, exactly once; each change of a count is a record. Runs until it is killed.

import java.util.Arrays;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

public class WordCount {
    public static void main(String[] arguments) {
        var given = new Properties();
        given.put("bootstrap.servers", arguments[0]);
        given.put("state.dir", arguments[1]);
        given.put("application.id", "words");
        given.put("processing.guarantee", "exactly_once_v2");
        given.put("commit.interval.ms", "100");
        given.put("statestore.cache.max.bytes", "0");
        given.put("num.stream.threads", "2");
        given.put("default.key.serde", Serdes.StringSerde.class);
        given.put("default.value.serde", Serdes.StringSerde.class);
        given.put("consumer.session.timeout.ms", "6000");
        given.put("consumer.heartbeat.interval.ms", "1000");
        given.put("consumer.max.poll.records", "20");
        given.put("consumer.auto.offset.reset", "earliest");
        var builder = new StreamsBuilder();
        builder.<String, String>stream("lines")
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.as("store"))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to("counts", Produced.with(Serdes.String(), Serdes.String()));
        var streams = new KafkaStreams(builder.build(), given);
        streams.setUncaughtExceptionHandler(problem -> {
            problem.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.start();
    }
}
