"""TLS: certificate files, handshakes, and principals of client certificates."""
