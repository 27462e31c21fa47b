"""The commands of `headrace`, each in a file that is imported when it runs.

Client commands may not import `server.app`, `kafka`, `console` or log storage (`pyproject.toml` lists them).
"""
