"""The write-ahead journal of an embedded Valkey. May import what `storage` may, and not the broker."""
