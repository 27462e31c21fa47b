// Flink copies numbers from one topic into two with transactions, one for each naming strategy. Runs until it is killed.
// Arguments: bootstrap servers, folder of checkpoints, checkpoint to begin with (or none).

import java.util.Properties;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

public class Copy {
    public static void main(String[] arguments) throws Exception {
        var given = new Configuration();
        given.setString("execution.checkpointing.interval", "500 ms");
        given.setString("execution.checkpointing.dir", "file://" + arguments[1]);
        given.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        given.setString("restart-strategy.type", "fixed-delay");
        given.setString("restart-strategy.fixed-delay.attempts", "1000");
        given.setString("restart-strategy.fixed-delay.delay", "500 ms");
        // A commit that gets no response must not delay the other sink's.
        given.setString("pipeline.operator-chaining.enabled", "false");
        if (arguments.length > 2) {
            given.setString("execution.state-recovery.path", "file://" + arguments[2]);
        }
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(given);
        environment.setParallelism(2);
        var numbers = environment.fromSource(
            KafkaSource.<String>builder()
                .setBootstrapServers(arguments[0])
                .setTopics("numbers")
                .setGroupId("copy")
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setValueOnlyDeserializer(new SimpleStringSchema())
                .setProperty("isolation.level", "read_committed")
                .build(),
            WatermarkStrategy.noWatermarks(), "numbers").uid("numbers");
        for (var strategy : TransactionNamingStrategy.values()) {
            var settings = new Properties();
            settings.put("transaction.timeout.ms", "600000");
            numbers.sinkTo(
                KafkaSink.<String>builder()
                    .setBootstrapServers(arguments[0])
                    .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                    .setTransactionNamingStrategy(strategy)
                    .setTransactionalIdPrefix(strategy.name())
                    .setKafkaProducerConfig(settings)
                    .setRecordSerializer(KafkaRecordSerializationSchema.builder()
                        .setTopic(strategy.name())
                        .setValueSerializationSchema(new SimpleStringSchema())
                        .build())
                    .build()).uid(strategy.name());
        }
        environment.execute("copy");
    }
}
