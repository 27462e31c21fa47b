"""The record batch (Kafka's format v2): header check, CRC, walk, build, compression, decode to Arrow.

This room imports nothing of Headrace, and none of asyncio, socket, Redis client, clock, random source or logging.
"""
