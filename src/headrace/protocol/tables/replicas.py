"""Administration of replicas: elections, reassignments, log directories, the controller quorum and features."""

TABLE = """
ElectLeadersRequest key 43 versions 0-2 flexible 2
  election_type int8 1+
  topic_partitions []TopicPartitions?
    topic string
    partitions []int32
  timeout_ms int32 = 60000

ElectLeadersResponse key 43 versions 0-2 flexible 2
  throttle_time_ms int32
  error_code int16 1+
  replica_election_results []ReplicaElectionResult
    topic string
    partition_result []PartitionResult
      partition_id int32
      error_code int16
      error_message string?

AlterPartitionReassignmentsRequest key 45 versions 0-1 flexible 0
  timeout_ms int32 = 60000
  allow_replication_factor_change bool 1+ = true
  topics []ReassignableTopic
    name string
    partitions []ReassignablePartition
      partition_index int32
      replicas []int32? = null

AlterPartitionReassignmentsResponse key 45 versions 0-1 flexible 0
  throttle_time_ms int32
  allow_replication_factor_change bool 1+ = true
  error_code int16
  error_message string?
  responses []ReassignableTopicResponse
    name string
    partitions []ReassignablePartitionResponse
      partition_index int32
      error_code int16
      error_message string?

ListPartitionReassignmentsRequest key 46 versions 0-0 flexible 0
  timeout_ms int32 = 60000
  topics []ListPartitionReassignmentsTopics? = null
    name string
    partition_indexes []int32

ListPartitionReassignmentsResponse key 46 versions 0-0 flexible 0
  throttle_time_ms int32
  error_code int16
  error_message string?
  topics []OngoingTopicReassignment
    name string
    partitions []OngoingPartitionReassignment
      partition_index int32
      replicas []int32
      adding_replicas []int32
      removing_replicas []int32

AlterReplicaLogDirsRequest key 34 versions 1-2 flexible 2
  dirs []AlterReplicaLogDir
    path string
    topics []AlterReplicaLogDirTopic
      name string
      partitions []int32

AlterReplicaLogDirsResponse key 34 versions 1-2 flexible 2
  throttle_time_ms int32
  results []AlterReplicaLogDirTopicResult
    topic_name string
    partitions []AlterReplicaLogDirPartitionResult
      partition_index int32
      error_code int16

DescribeQuorumRequest key 55 versions 0-2 flexible 0
  topics []TopicData
    topic_name string
    partitions []PartitionData
      partition_index int32

DescribeQuorumResponse key 55 versions 0-2 flexible 0
  error_code int16
  error_message string? 2+
  topics []TopicData
    topic_name string
    partitions []PartitionData
      partition_index int32
      error_code int16
      error_message string? 2+
      leader_id int32
      leader_epoch int32
      high_watermark int64
      current_voters []ReplicaState
        replica_id int32
        replica_directory_id uuid 2+
        log_end_offset int64
        last_fetch_timestamp int64 1+ = -1
        last_caught_up_timestamp int64 1+ = -1
      observers []ReplicaState
        replica_id int32
        replica_directory_id uuid 2+
        log_end_offset int64
        last_fetch_timestamp int64 1+ = -1
        last_caught_up_timestamp int64 1+ = -1
  nodes []Node 2+
    node_id int32
    listeners []Listener
      name string
      host string
      port uint16

UpdateFeaturesRequest key 57 versions 0-2 flexible 0
  timeout_ms int32 = 60000
  feature_updates []FeatureUpdateKey
    feature string
    max_version_level int16
    allow_downgrade bool 0-0
    upgrade_type int8 1+ = 1
  validate_only bool 1+

UpdateFeaturesResponse key 57 versions 0-2 flexible 0
  throttle_time_ms int32
  error_code int16
  error_message string?
  results []UpdatableFeatureResult 0-1
    feature string
    error_code int16
    error_message string?

ListConfigResourcesRequest key 74 versions 0-1 flexible 0
  resource_types []int8 1+

ListConfigResourcesResponse key 74 versions 0-1 flexible 0
  throttle_time_ms int32
  error_code int16
  config_resources []ConfigResource
    resource_name string
    resource_type int8 1+ = 16
"""
