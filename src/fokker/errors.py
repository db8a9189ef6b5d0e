"""What `fokker` raises at its boundary. Each message says what was given, what is needed, and what to try."""


class FokkerError(Exception):
    """Anything that this package raises on purpose."""


class InputError(FokkerError, ValueError):
    """An argument that cannot be used as it is."""


class SpaceError(InputError):
    """A point, a shape or a measure that does not belong to the space it is said to live on."""


class NonFiniteError(FokkerError, ArithmeticError):
    """A chain that reached a value that is not finite."""


class StoreError(FokkerError):
    """A store that cannot be opened, read, written or continued."""
