"""The topics of the running server: table, lookup, reconciliation, retention, offline partitions."""
