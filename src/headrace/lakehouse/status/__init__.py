"""What is known of a running archive, without Spark: counted once, whoever shows it."""
