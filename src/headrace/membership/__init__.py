"""Who is alive among the brokers of a keyspace, and which of them owns what. Pure: time and answers are arguments."""
