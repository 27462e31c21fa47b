"""Delta tables of topics: read, write, maintain. Knows no server and no Spark."""
