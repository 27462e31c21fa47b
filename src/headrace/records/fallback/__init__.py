"""The C extensions' functions in Python, for machines without a compiler."""
