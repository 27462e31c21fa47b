#!lua flags=no-writes
-- Return the headers of batches from an entry.
-- KEYS: stream
-- ARGV: first entry id, maximum number
-- Reply: alternating ids and first 61 bytes of batches, 96 of control batches: they include the marker.
-- Parts: starts
return starts_from(KEYS[1], ARGV[1], ARGV[2])
