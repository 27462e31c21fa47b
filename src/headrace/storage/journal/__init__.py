"""The write-ahead journal of an embedded Valkey: batches acknowledged before Redis has them."""
