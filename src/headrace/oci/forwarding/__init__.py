"""Requests of the OCI API that another broker has to answer: sent there, and received from there.

May import what `oci` may import: `http.peers`, the broker and the pure packages, and no storage.
"""
