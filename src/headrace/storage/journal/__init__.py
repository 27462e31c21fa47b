"""The write-ahead journal of an embedded Valkey. Must not import the broker."""
