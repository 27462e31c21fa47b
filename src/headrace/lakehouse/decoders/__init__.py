"""Decode values into columns of typed tables. Failed values go to the dead-letter table with a reason."""
