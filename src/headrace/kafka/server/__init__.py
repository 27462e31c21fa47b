"""Server side of the Kafka protocol. It may import what `kafka` may. Only the listener imports `kafka.apis`."""
