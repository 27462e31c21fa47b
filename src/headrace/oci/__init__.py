"""The OCI Streaming API: Oracle's REST API over the same log, for its unmodified SDKs and command line.

May import `http`, the broker and the layers below it, but not storage or client.
"""
