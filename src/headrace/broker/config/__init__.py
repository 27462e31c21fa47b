"""The broker's configuration: keys with their defaults, and settings as values. Reads no environment and no file.

Imports no other part of the broker.
"""
