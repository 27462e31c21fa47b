"""Consumer groups: coordinators, membership, descriptions."""

TABLE = """
FindCoordinatorRequest key 10 versions 0-6 flexible 3
  key string 0-3
  key_type int8 1+
  coordinator_keys []string 4+

FindCoordinatorResponse key 10 versions 0-6 flexible 3
  throttle_time_ms int32 1+
  error_code int16 0-3
  error_message string? 1-3
  node_id int32 0-3
  host string 0-3
  port int32 0-3
  coordinators []Coordinator 4+
    key string
    node_id int32
    host string
    port int32
    error_code int16
    error_message string?

JoinGroupRequest key 11 versions 0-9 flexible 6
  group_id string
  session_timeout_ms int32
  rebalance_timeout_ms int32 1+ = -1
  member_id string
  group_instance_id string? 5+ = null
  protocol_type string
  protocols []JoinGroupRequestProtocol
    name string
    metadata bytes
  reason string? 8+ = null

JoinGroupResponse key 11 versions 0-9 flexible 6
  throttle_time_ms int32 2+
  error_code int16
  generation_id int32 = -1
  protocol_type string? 7+ = null
  protocol_name string?7+
  leader string
  skip_assignment bool 9+
  member_id string
  members []JoinGroupResponseMember
    member_id string
    group_instance_id string? 5+ = null
    metadata bytes

HeartbeatRequest key 12 versions 0-4 flexible 4
  group_id string
  generation_id int32
  member_id string
  group_instance_id string? 3+ = null

HeartbeatResponse key 12 versions 0-4 flexible 4
  throttle_time_ms int32 1+
  error_code int16

LeaveGroupRequest key 13 versions 0-5 flexible 4
  group_id string
  member_id string 0-2
  members []MemberIdentity 3+
    member_id string
    group_instance_id string? = null
    reason string? 5+ = null

LeaveGroupResponse key 13 versions 0-5 flexible 4
  throttle_time_ms int32 1+
  error_code int16
  members []MemberResponse 3+
    member_id string
    group_instance_id string?
    error_code int16

SyncGroupRequest key 14 versions 0-5 flexible 4
  group_id string
  generation_id int32
  member_id string
  group_instance_id string? 3+ = null
  protocol_type string? 5+ = null
  protocol_name string? 5+ = null
  assignments []SyncGroupRequestAssignment
    member_id string
    assignment bytes

SyncGroupResponse key 14 versions 0-5 flexible 4
  throttle_time_ms int32 1+
  error_code int16
  protocol_type string? 5+ = null
  protocol_name string? 5+ = null
  assignment bytes

DescribeGroupsRequest key 15 versions 0-6 flexible 5
  groups []string
  include_authorized_operations bool 3+

DescribeGroupsResponse key 15 versions 0-6 flexible 5
  throttle_time_ms int32 1+
  groups []DescribedGroup
    error_code int16
    error_message string? 6+ = null
    group_id string
    group_state string
    protocol_type string
    protocol_data string
    members []DescribedGroupMember
      member_id string
      group_instance_id string? 4+ = null
      client_id string
      client_host string
      member_metadata bytes
      member_assignment bytes
    authorized_operations int32 3+ = -2147483648

ListGroupsRequest key 16 versions 0-5 flexible 3
  states_filter []string 4+
  types_filter []string 5+

ListGroupsResponse key 16 versions 0-5 flexible 3
  throttle_time_ms int32 1+
  error_code int16
  groups []ListedGroup
    group_id string
    protocol_type string
    group_state string 4+
    group_type string 5+

DeleteGroupsRequest key 42 versions 0-2 flexible 2
  groups_names []string

DeleteGroupsResponse key 42 versions 0-2 flexible 2
  throttle_time_ms int32
  results []DeletableGroupResult
    group_id string
    error_code int16
"""
