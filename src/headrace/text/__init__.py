"""Text to values and back: addresses, amounts, times, untrusted text, the environment. Imports nothing of Headrace."""
