"""Redis connection, embedded Valkey, and the calls that run the keyspace scripts."""
