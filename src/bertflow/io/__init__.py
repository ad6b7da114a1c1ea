"""Files and folders: written whole or not at all, and small JSON of strangers read strictly."""

__all__: list[str] = []
