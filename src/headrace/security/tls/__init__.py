"""TLS: certificates and keys as files, the handshake of a connection, and who a client's certificate names."""
