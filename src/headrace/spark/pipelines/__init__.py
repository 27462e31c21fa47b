"""Declared pipelines: projects for Spark's own `spark-pipelines`, an environment to run them in, and what a run did."""
