"""What must hold on a GPU as on the CPU. Skipped by name where there is none."""

import jax
import numpy as np
import pytest

from fokker.numeric import random_jax


@pytest.fixture(scope="module")
def gpu():
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no GPU that JAX can use")


def test_random_bits_on_a_gpu_are_those_of_the_cpu(gpu):
    def drawn(device):
        with jax.default_device(device):
            return np.asarray(jax.jit(lambda key: random_jax.bits(key, (10_000,)))(jax.random.key(0)))

    np.testing.assert_array_equal(drawn(gpu), drawn(jax.devices("cpu")[0]))
