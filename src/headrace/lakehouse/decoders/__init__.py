"""Typed tables: values decoded into columns; what cannot be decoded goes to a table beside, with the reason."""
