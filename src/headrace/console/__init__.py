"""The door for people: pages, health, metrics."""
