"""Requests of the OCI API that another broker has to answer."""
