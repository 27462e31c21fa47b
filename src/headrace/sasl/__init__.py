"""SASL mechanisms of the Kafka listeners, and the check of their names, passwords and tokens.

May import the broker and the layers below it, but not storage or client.
"""
