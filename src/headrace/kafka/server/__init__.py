"""The server side of the Kafka protocol: listener, connections, requests in and responses out."""
