"""Topics without I/O: names, configuration, limits, readable range, producer sequences."""
