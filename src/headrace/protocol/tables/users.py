"""Credentials of users: DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554)."""

TABLE = """
DescribeUserScramCredentialsRequest key 50 versions 0-0 flexible 0
  users []UserName?
    name string

DescribeUserScramCredentialsResponse key 50 versions 0-0 flexible 0
  throttle_time_ms int32
  error_code int16
  error_message string?
  results []DescribeUserScramCredentialsResult
    user string
    error_code int16
    error_message string?
    credential_infos []CredentialInfo
      mechanism int8
      iterations int32

AlterUserScramCredentialsRequest key 51 versions 0-0 flexible 0
  deletions []ScramCredentialDeletion
    name string
    mechanism int8
  upsertions []ScramCredentialUpsertion
    name string
    mechanism int8
    iterations int32
    salt bytes
    salted_password bytes

AlterUserScramCredentialsResponse key 51 versions 0-0 flexible 0
  throttle_time_ms int32
  results []AlterUserScramCredentialsResult
    user string
    error_code int16
    error_message string?
"""
