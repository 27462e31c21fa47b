"""The Kafka protocol: codec (sans-io), one file per API, the listener."""
