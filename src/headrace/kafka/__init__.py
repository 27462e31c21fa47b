"""The Kafka door: codec (sans-io), one file per API, the listener."""
