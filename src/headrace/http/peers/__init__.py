"""How the brokers of a keyspace ask each other: over their HTTP listeners, with seals that only they can make."""
