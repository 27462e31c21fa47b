"""The functions of the C extensions in Python, selected by `records.accelerator`."""
