"""Text to values and back: addresses, amounts, times, patterns, untrusted text. Imports nothing of Headrace."""
