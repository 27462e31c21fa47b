"""The balanced consumer group: the server assigns a topic's partitions to instances."""
