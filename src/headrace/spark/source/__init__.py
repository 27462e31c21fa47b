"""Read with `format("headrace")`, from Redis through `storage.layout` or from any Kafka broker through `client`.

May import no broker and no listener.
"""
