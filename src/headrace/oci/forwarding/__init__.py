"""Forward requests of the OCI API to other brokers, and receive theirs.

May import what `oci` may import.
"""
