"""Quotas of users, client ids and addresses: DescribeClientQuotas, AlterClientQuotas (KIP-546, KIP-612)."""

TABLE = """
DescribeClientQuotasRequest key 48 versions 0-1 flexible 1
  components []ComponentData
    entity_type string
    match_type int8
    match string?
  strict bool

DescribeClientQuotasResponse key 48 versions 0-1 flexible 1
  throttle_time_ms int32
  error_code int16
  error_message string?
  entries []EntryData?
    entity []EntityData
      entity_type string
      entity_name string?
    values []ValueData
      key string
      value float64

AlterClientQuotasRequest key 49 versions 0-1 flexible 1
  entries []EntryData
    entity []EntityData
      entity_type string
      entity_name string?
    ops []OpData
      key string
      value float64
      remove bool
  validate_only bool

AlterClientQuotasResponse key 49 versions 0-1 flexible 1
  throttle_time_ms int32
  entries []EntryData
    error_code int16
    error_message string?
    entity []EntityData
      entity_type string
      entity_name string?
"""
