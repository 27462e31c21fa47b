"""The OCI Streaming API over HTTP: routing, authentication, authorization, requests and responses.

May import what `oci` may import: `http`, the broker and the pure packages, and no storage.
"""
