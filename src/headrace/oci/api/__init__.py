"""The OCI Streaming API over HTTP: routing, authentication, authorization, requests and responses.

May import what `oci` may import.
"""
