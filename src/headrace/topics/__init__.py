"""What append, read and trim mean: names, configuration, limits, readable range, producer sequences. Pure."""
