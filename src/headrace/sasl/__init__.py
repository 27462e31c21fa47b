"""SASL mechanisms of the Kafka listeners, with the check of passwords and tokens.

It may import the broker and lower layers, but not storage or client.
"""
