"""The web console and `/metrics`.

May import `http`, the broker and the layers below it, but not storage or client.
"""
