"""The message tables, by related APIs."""
