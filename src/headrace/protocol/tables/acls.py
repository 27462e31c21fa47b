"""ACLs."""

TABLE = """
DescribeAclsRequest key 29 versions 1-3 flexible 2
  resource_type_filter int8
  resource_name_filter string?
  pattern_type_filter int8 1+ = 3
  principal_filter string?
  host_filter string?
  operation int8
  permission_type int8

DescribeAclsResponse key 29 versions 1-3 flexible 2
  throttle_time_ms int32
  error_code int16
  error_message string?
  resources []DescribeAclsResource
    resource_type int8
    resource_name string
    pattern_type int8 1+ = 3
    acls []AclDescription
      principal string
      host string
      operation int8
      permission_type int8

CreateAclsRequest key 30 versions 1-3 flexible 2
  creations []AclCreation
    resource_type int8
    resource_name string
    resource_pattern_type int8 1+ = 3
    principal string
    host string
    operation int8
    permission_type int8

CreateAclsResponse key 30 versions 1-3 flexible 2
  throttle_time_ms int32
  results []AclCreationResult
    error_code int16
    error_message string?

DeleteAclsRequest key 31 versions 1-3 flexible 2
  filters []DeleteAclsFilter
    resource_type_filter int8
    resource_name_filter string?
    pattern_type_filter int8 1+ = 3
    principal_filter string?
    host_filter string?
    operation int8
    permission_type int8

DeleteAclsResponse key 31 versions 1-3 flexible 2
  throttle_time_ms int32
  filter_results []DeleteAclsFilterResult
    error_code int16
    error_message string?
    matching_acls []DeleteAclsMatchingAcl
      error_code int16
      error_message string?
      resource_type int8
      resource_name string
      pattern_type int8 1+ = 3
      principal string
      host string
      operation int8
      permission_type int8
"""
