"""The messages in the notation of `notation`, one file per group of related APIs."""
