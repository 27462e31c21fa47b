"""Decode values into the columns of typed tables. Values that fail go to the dead-letter table with a reason."""
