"""Administration of topics and configurations."""

TABLE = """
CreateTopicsRequest key 19 versions 2-7 flexible 5
  topics []CreatableTopic
    name string
    num_partitions int32
    replication_factor int16
    assignments []CreatableReplicaAssignment
      partition_index int32
      broker_ids []int32
    configs []CreatableTopicConfig
      name string
      value string?
  timeout_ms int32 = 60000
  validate_only bool 1+

CreateTopicsResponse key 19 versions 2-7 flexible 5
  throttle_time_ms int32 2+
  topics []CreatableTopicResult
    name string
    topic_id uuid 7+
    error_code int16
    error_message string? 1+
    topic_config_error_code int16 5+ #0
    num_partitions int32 5+ = -1
    replication_factor int16 5+ = -1
    configs []CreatableTopicConfigs? 5+
      name string
      value string?
      read_only bool
      config_source int8 = -1
      is_sensitive bool

DeleteTopicsRequest key 20 versions 1-6 flexible 4
  topics []DeleteTopicState 6+
    name string? = null
    topic_id uuid
  topic_names []string 0-5
  timeout_ms int32

DeleteTopicsResponse key 20 versions 1-6 flexible 4
  throttle_time_ms int32 1+
  responses []DeletableTopicResult
    name string?6+
    topic_id uuid 6+
    error_code int16
    error_message string? 5+ = null

DescribeLogDirsRequest key 35 versions 1-5 flexible 2
  topics []DescribableLogDirTopic?
    topic string
    partitions []int32

DescribeLogDirsResponse key 35 versions 1-5 flexible 2
  throttle_time_ms int32
  error_code int16 3+
  results []DescribeLogDirsResult
    error_code int16
    log_dir string
    topics []DescribeLogDirsTopic
      name string
      partitions []DescribeLogDirsPartition
        partition_index int32
        partition_size int64
        offset_lag int64
        is_future_key bool
    total_bytes int64 4+ = -1
    usable_bytes int64 4+ = -1
    is_cordoned bool 5+

CreatePartitionsRequest key 37 versions 0-3 flexible 2
  topics []CreatePartitionsTopic
    name string
    count int32
    assignments []CreatePartitionsAssignment?
      broker_ids []int32
  timeout_ms int32
  validate_only bool

CreatePartitionsResponse key 37 versions 0-3 flexible 2
  throttle_time_ms int32
  results []CreatePartitionsTopicResult
    name string
    error_code int16
    error_message string? = null

DescribeConfigsRequest key 32 versions 1-4 flexible 4
  resources []DescribeConfigsResource
    resource_type int8
    resource_name string
    configuration_keys []string?
  include_synonyms bool 1+
  include_documentation bool 3+

DescribeConfigsResponse key 32 versions 1-4 flexible 4
  throttle_time_ms int32
  results []DescribeConfigsResult
    error_code int16
    error_message string?
    resource_type int8
    resource_name string
    configs []DescribeConfigsResourceResult
      name string
      value string?
      read_only bool
      config_source int8 1+ = -1
      is_sensitive bool
      synonyms []DescribeConfigsSynonym 1+
        name string
        value string?
        source int8
      config_type int8 3+
      documentation string? 3+

AlterConfigsRequest key 33 versions 0-2 flexible 2
  resources []AlterConfigsResource
    resource_type int8
    resource_name string
    configs []AlterableConfig
      name string
      value string?
  validate_only bool

AlterConfigsResponse key 33 versions 0-2 flexible 2
  throttle_time_ms int32
  responses []AlterConfigsResourceResponse
    error_code int16
    error_message string?
    resource_type int8
    resource_name string

IncrementalAlterConfigsRequest key 44 versions 0-1 flexible 1
  resources []AlterConfigsResource
    resource_type int8
    resource_name string
    configs []AlterableConfig
      name string
      config_operation int8
      value string?
  validate_only bool

IncrementalAlterConfigsResponse key 44 versions 0-1 flexible 1
  throttle_time_ms int32
  responses []AlterConfigsResourceResponse
    error_code int16
    error_message string?
    resource_type int8
    resource_name string
"""
