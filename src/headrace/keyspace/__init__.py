"""How a topic lives in Redis: keys, entries, offset <-> entry id, server-side scripts, layout version. Pure."""
