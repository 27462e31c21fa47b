"""Record batches (Kafka's format v2).

Pure: it imports nothing else of Headrace, and no asyncio, socket, Redis client, clock, random source or logging.
"""
