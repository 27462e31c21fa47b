"""Native topics in the running server: a partition is a plain Redis Stream, a group is a Redis consumer group."""
