"""Logins: SASL mechanisms, and whose names and passwords they take."""
