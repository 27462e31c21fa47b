"""Traces as OpenTelemetry receivers get them, for the server and for archives. An extra; imports records only."""
