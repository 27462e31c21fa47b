"""The HTTP listener: connections, host checks, startup gate, error responses. Requests between brokers in `peers`.

Knows no API that is mounted on it. May import the broker and the layers below it, but not storage or client.
"""
