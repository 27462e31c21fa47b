"""The rules of a schema registry: parsing, compatibility, subjects and versions. Pure; it knows no HTTP and no storage.

Source: Confluent's documentation, "Schema Registry API Reference" and "Schema Evolution and Compatibility".
"""
