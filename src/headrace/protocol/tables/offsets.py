"""OffsetCommit, OffsetFetch, OffsetDelete."""

TABLE = """
OffsetCommitRequest key 8 versions 2-10 flexible 8
  group_id string
  generation_id_or_member_epoch int32 1+ = -1
  member_id string 1+
  group_instance_id string? 7+ = null
  retention_time_ms int64 2-4 = -1
  topics []OffsetCommitRequestTopic
    name string 0-9
    topic_id uuid 10+
    partitions []OffsetCommitRequestPartition
      partition_index int32
      committed_offset int64
      committed_leader_epoch int32 6+ = -1
      committed_metadata string?

OffsetCommitResponse key 8 versions 2-10 flexible 8
  throttle_time_ms int32 3+
  topics []OffsetCommitResponseTopic
    name string 0-9
    topic_id uuid 10+
    partitions []OffsetCommitResponsePartition
      partition_index int32
      error_code int16

OffsetFetchRequest key 9 versions 1-10 flexible 6
  group_id string 0-7
  topics []OffsetFetchRequestTopic?2+ 0-7
    name string
    partition_indexes []int32
  groups []OffsetFetchRequestGroup 8+
    group_id string
    member_id string? 9+ = null
    member_epoch int32 9+ = -1
    topics []OffsetFetchRequestTopics?
      name string 8-9
      topic_id uuid 10+
      partition_indexes []int32
  require_stable bool 7+

OffsetFetchResponse key 9 versions 1-10 flexible 6
  throttle_time_ms int32 3+
  topics []OffsetFetchResponseTopic 0-7
    name string
    partitions []OffsetFetchResponsePartition
      partition_index int32
      committed_offset int64
      committed_leader_epoch int32 5+ = -1
      metadata string?
      error_code int16
  error_code int16 2-7
  groups []OffsetFetchResponseGroup 8+
    group_id string
    topics []OffsetFetchResponseTopics
      name string 8-9
      topic_id uuid 10+
      partitions []OffsetFetchResponsePartitions
        partition_index int32
        committed_offset int64
        committed_leader_epoch int32 = -1
        metadata string?
        error_code int16
    error_code int16

OffsetDeleteRequest key 47 versions 0-0
  group_id string
  topics []OffsetDeleteRequestTopic
    name string
    partitions []OffsetDeleteRequestPartition
      partition_index int32

OffsetDeleteResponse key 47 versions 0-0
  error_code int16
  throttle_time_ms int32
  topics []OffsetDeleteResponseTopic
    name string
    partitions []OffsetDeleteResponsePartition
      partition_index int32
      error_code int16
"""
