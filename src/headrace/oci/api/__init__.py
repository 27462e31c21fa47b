"""Oracle's Streaming API over HTTP: routing, authentication, authorization, requests and responses."""
