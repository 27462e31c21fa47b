"""Generated Python."""

from typing import Any


class Source:
    """A function under construction: indented lines, unique local names, and its globals."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.depth = 1
        self._counter = 0

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + text)

    def indent(self, text: str) -> None:
        """Append a line that opens a block."""
        self.line(text)
        self.depth += 1

    def dedent(self, text: str | None = None) -> None:
        """Close a block; `text` (else, elif) opens the next one."""
        self.depth -= 1
        if text is not None:
            self.indent(text)

    def local(self, stem: str) -> str:
        """Return a unique local name."""
        self._counter += 1
        return f"{stem}{self._counter}"

    def bind(self, name: str, value: Any) -> str:
        """Make `value` a global of the function."""
        assert self.names.setdefault(name, value) == value, name
        return name

    def compile(self, head: str, label: str) -> Any:
        """Return the function; `head` is its `def` line, `label` its file name in tracebacks."""
        text = "\n".join([head, *self.lines])
        namespace = dict(self.names)
        exec(compile(text, f"<{label}>", "exec"), namespace)
        return namespace[head.removeprefix("def ").split("(")[0]]
