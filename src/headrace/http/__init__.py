"""The HTTP listener. Requests between brokers are in `peers`.

It knows no mounted API. It may import the broker and lower layers, but not storage or client.
"""
