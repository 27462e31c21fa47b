"""Produce, InitProducerId, DeleteRecords."""

TABLE = """
ProduceRequest key 0 versions 0-13 flexible 9
  transactional_id string? 3+ = null
  acks int16
  timeout_ms int32
  topic_data []TopicProduceData
    name string 0-12
    topic_id uuid 13+
    partition_data []PartitionProduceData
      index int32
      records records?

ProduceResponse key 0 versions 0-13 flexible 9
  responses []TopicProduceResponse
    name string 0-12
    topic_id uuid 13+
    partition_responses []PartitionProduceResponse
      index int32
      error_code int16
      base_offset int64
      log_append_time_ms int64 2+ = -1
      log_start_offset int64 5+ = -1
      record_errors []BatchIndexAndErrorMessage 8+
        batch_index int32
        batch_index_error_message string? = null
      error_message string? 8+ = null
      current_leader LeaderIdAndEpoch 10+ #0
        leader_id int32 = -1
        leader_epoch int32 = -1
  throttle_time_ms int32 1+
  node_endpoints []NodeEndpoint 10+ #0
    node_id int32
    host string
    port int32
    rack string? = null

InitProducerIdRequest key 22 versions 0-6 flexible 2
  transactional_id string?
  transaction_timeout_ms int32
  producer_id int64 3+ = -1
  producer_epoch int16 3+ = -1
  enable2_pc bool 6+
  keep_prepared_txn bool 6+

InitProducerIdResponse key 22 versions 0-6 flexible 2
  throttle_time_ms int32
  error_code int16
  producer_id int64 = -1
  producer_epoch int16
  ongoing_txn_producer_id int64 6+ = -1
  ongoing_txn_producer_epoch int16 6+ = -1

DeleteRecordsRequest key 21 versions 0-2 flexible 2
  topics []DeleteRecordsTopic
    name string
    partitions []DeleteRecordsPartition
      partition_index int32
      offset int64
  timeout_ms int32

DeleteRecordsResponse key 21 versions 0-2 flexible 2
  throttle_time_ms int32
  topics []DeleteRecordsTopicResult
    name string
    partitions []DeleteRecordsPartitionResult
      partition_index int32
      low_watermark int64
      error_code int16
"""
