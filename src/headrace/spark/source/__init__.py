"""`format("headrace")` for reading: the data source, streams, tasks, and the logs that they read."""
