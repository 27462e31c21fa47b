"""Text as values and back: addresses, amounts, times, escaping. Imports nothing of Headrace."""
