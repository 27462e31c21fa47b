"""The scripts of native topics: loaded on every connection with the others."""

NATIVE_SCRIPTS = (
    "native_append", "native_commit", "native_count", "native_drop", "native_enter", "native_extent", "native_forget",
    "native_leave", "native_open", "native_position", "native_trim",
)  # fmt: skip
