"""What the admin operations work on: streams, stream pools, connect harnesses, work requests, kept as documents.

A topic of a virtual cluster is a stream whether or not it has a document: those made through Kafka have none.
"""
