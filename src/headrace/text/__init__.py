"""Text to values and back: addresses, amounts, times, and untrusted text for terminals.

May import nothing of Headrace.
"""
