"""The messages in the notation of `codec.notation`, one file per group of related APIs."""
