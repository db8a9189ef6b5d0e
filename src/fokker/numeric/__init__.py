"""The one random-number generator of the library, in JAX and in Numba, and special functions."""
