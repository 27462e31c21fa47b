"""Record batches (Kafka's format v2): header check, CRC, iteration, building, compression, Arrow.

Pure: it imports nothing else of Headrace, and no asyncio, socket, Redis client, clock, random source or logging.
"""
