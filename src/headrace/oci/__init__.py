"""The OCI Streaming door: Oracle's REST API over the same log, for its unmodified SDKs and command line."""
