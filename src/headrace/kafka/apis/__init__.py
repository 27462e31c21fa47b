"""One file per Kafka API, each with one registration line; ApiVersions and the docs are built from these."""
