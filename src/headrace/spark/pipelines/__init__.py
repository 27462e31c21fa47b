"""Projects for Spark's own `spark-pipelines`: create, check, run and report them."""
