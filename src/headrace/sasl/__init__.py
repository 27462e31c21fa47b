"""SASL mechanisms of the Kafka listeners.

It may import the broker and lower layers, but not storage or client.
"""
