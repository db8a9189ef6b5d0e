"""What every test may ask for."""

import jax
import pytest


@pytest.fixture
def x64():
    """64-bit arrays within this test, without touching the global setting."""
    with jax.enable_x64(True):
        yield
