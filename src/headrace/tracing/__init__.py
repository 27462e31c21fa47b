"""OpenTelemetry traces of the server and of archives. An extra. Imports records only."""
