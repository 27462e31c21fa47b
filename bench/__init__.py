"""How fast Headrace is, as ratios within one run: `python -m bench --help`."""
