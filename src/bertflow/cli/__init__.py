"""The command line: `bertflow --help`."""

__all__: list[str] = []
