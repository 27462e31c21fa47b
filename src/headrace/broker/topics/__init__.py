"""Topics of the running server: table, changes by other brokers, retention, log cleaner, offline partitions."""
