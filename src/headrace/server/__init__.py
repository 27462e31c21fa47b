"""The composition of a server: the only package that imports both broker and storage."""
