"""The schema registry: Confluent's REST API under `/registry`, over schemas in the broker's documents.

The rules are in `headrace.schemas`. This package adds HTTP, rights and storage.
"""
