"""What may happen to a writer at any change that it makes to the disk."""

import os

from fokker.run import files

CHANGES = ((os, "replace"), (os, "unlink"), (os, "fsync"), (files, "_write_whole"))


class Changes:
    """Counts the changes of the disk while ``patched``, and raises at one of them, as if before it the end came.

    for_good: at every later change too, so that nothing is tidied up.
    """

    def __init__(self, at: int, error: BaseException, for_good: bool = False):
        self.seen, self._at, self._error, self._for_good = 0, at, error, for_good

    def patch(self, patched) -> None:
        """patched: of ``with monkeypatch.context() as patched``."""
        for module, name in CHANGES:
            patched.setattr(module, name, self._counted(getattr(module, name)))

    def _counted(self, change):
        def call(*args, **kwargs):
            self.seen += 1
            if self.seen == self._at or (self._for_good and 0 < self._at < self.seen):
                raise self._error
            return change(*args, **kwargs)

        return call
