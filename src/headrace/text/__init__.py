"""Text to values and back: addresses, amounts, times, untrusted text for terminals, the environment.

May import nothing of Headrace.
"""
