"""For people: pages, health, metrics."""
