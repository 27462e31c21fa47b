"""The record batch (Kafka's format v2): header check, CRC, walk, build, compression, decode to Arrow.

Pure. May import nothing of Headrace, and no asyncio, socket, Redis client, clock, random source or logging.
"""
