"""The OCI Streaming API: Oracle's REST API over the same log, for its unmodified SDKs and command line."""
