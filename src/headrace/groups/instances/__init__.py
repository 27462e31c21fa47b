"""The balanced consumer group: the server shares a topic's partitions out among the instances that ask for records."""
