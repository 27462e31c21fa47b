"""The broker's configuration: keys with their defaults, and settings as values."""
