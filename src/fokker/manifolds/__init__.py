"""Spaces that parameters live on: one small frozen dataclass a file, one vocabulary (docs/adr/0008-spaces.md)."""
