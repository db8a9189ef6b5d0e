"""Which law each sampler leaves invariant, in which limit, and the tests that prove it.

`docs/make_laws.py` makes docs/laws.md from these rows and the docstrings of the methods.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Law:
    """A row: the sampler's public name and module, its recipe in the catalogue, its law, and the evidence."""

    kernel: str
    recipe: str
    leaves_invariant: str
    limit: str
    proof: tuple[str, ...]  # file::test, below tests/
    folder: str = "sgmcmc"

    @property
    def module(self) -> str:
        return f"fokker.{self.folder}.{self.kernel}"


_RECIPE = "sgmcmc/test_recipes.py::test_one_step_has_the_drift_and_the_diffusion_of_the_recipe"
_LINEAR = "sgmcmc/test_linear_gaussian.py::test_the_stationary_covariance_is_the_closed_form"
_ORDER = "sgmcmc/test_linear_gaussian.py::test_the_order_of_the_bias"
_GEODESIC = "geodesic/test_geodesic_samplers.py::"
_CHMC = "geodesic/test_chmc.py::"
_EXACTLY = "geodesic/test_exactness.py::"
_CHART = "geodesic/test_recipe.py::test_one_step_in_the_embedding_has_the_drift_and_the_diffusion_of_the_recipe"
_STEP = "step → 0"
_EXACT = "exact at every step"

LAWS: tuple[Law, ...] = (
    Law("sgld", "sgld", "exp(-U)", _STEP, (_LINEAR, _ORDER, _RECIPE)),
    Law(
        "psgld",
        "sgld",
        "exp(-U)",
        "step → 0, from the iteration at which the preconditioner is frozen",
        ("sgmcmc/test_preconditioned.py::test_psgld_is_sgld_with_its_frozen_preconditioner", _RECIPE),
    ),
    Law(
        "sgfs",
        "sgld",
        "exp(-U)",
        "exact at every step on a Gaussian with the right precision and noise; else step → 0",
        (
            "sgmcmc/test_preconditioned.py::test_sgfs_is_exact_on_a_gaussian_at_every_step",
            "sgmcmc/test_preconditioned.py::test_sgfs_with_a_wrong_estimate_is_right_as_the_step_goes_to_zero",
            _RECIPE,
        ),
    ),
    Law(
        "sghmc",
        "sghmc",
        "exp(-U - r·M⁻¹r/2)",
        _STEP,
        (_LINEAR, _ORDER, "sgmcmc/test_sghmc.py::test_the_bias_in_two_wells_has_no_term_of_first_order", _RECIPE),
    ),
    Law(
        "sgnht",
        "sgnht, msgnht, grouped_sgnht",
        "exp(-U - r·M⁻¹r/2 - Σ τ m (ξ - A)²/2)",
        _STEP,
        (
            "sgmcmc/test_sgnht.py::test_a_double_well_and_a_quartic_have_their_moments",
            "sgmcmc/test_sgnht.py::test_the_order_of_the_bias",
            "sgmcmc/test_sgnht.py::test_unknown_gradient_noise_goes_to_the_thermostat_and_nowhere_else",
            _RECIPE,
        ),
    ),
    Law(
        "sgrld",
        "sgrld",
        "exp(-U) dθ",
        _STEP,
        (
            "sgmcmc/test_sgrld.py::test_the_bias_is_of_first_order_with_the_slope_of_the_theory",
            "sgmcmc/test_sgrld.py::test_a_full_matrix_in_two_dimensions",
            "sgmcmc/test_sgrld.py::test_a_wrong_gamma_is_seen",
            _RECIPE,
        ),
    ),
    Law(
        "sgrhmc",
        "gsgrhmc, adaptive",
        "exp(-U - r·r/2) dθ dr",
        _STEP,
        (
            "sgmcmc/test_sgrhmc.py::test_the_bias_vanishes_with_the_step",
            "sgmcmc/test_sgrhmc.py::test_a_full_matrix_in_two_dimensions",
            "sgmcmc/test_sgrhmc.py::test_a_wrong_gamma_is_seen",
            "sgmcmc/test_sgrhmc.py::test_with_a_constant_metric_the_linear_chain_has_the_closed_form",
            _RECIPE,
        ),
    ),
    Law(
        "hmc",
        "hmc",
        "exp(-U)",
        _EXACT,
        (
            "sgmcmc/test_hmc.py::test_exact_draws_stay_exact",
            "sgmcmc/test_hmc.py::test_leapfrog_is_reversible_and_keeps_volume",
            "sgmcmc/test_sbc.py::test_ranks_are_uniform",
        ),
    ),
    Law(
        "rmld",
        "sgrld",
        "exp(-U) dθ",
        _EXACT,
        (
            "sgmcmc/test_rmld.py::test_detailed_balance",
            "sgmcmc/test_rmld.py::test_exact_draws_stay_exact",
            "sgmcmc/test_sbc.py::test_ranks_are_uniform",
        ),
    ),
    Law(
        "rmhmc",
        "rmhmc",
        "exp(-U) dθ",
        "exact at every step, to the tolerance of the inner iterations",
        (
            "sgmcmc/test_rmhmc.py::test_exact_draws_stay_exact",
            "sgmcmc/test_rmhmc.py::test_steps_are_reversible_and_keep_volume",
            "sgmcmc/test_rmhmc.py::test_an_inner_iteration_that_does_not_converge_is_a_counted_rejection",
            "sgmcmc/test_sbc.py::test_ranks_are_uniform",
        ),
    ),
    Law(
        "sggmc",
        "sggmc",
        "exp(-U - |v|²/2), U by the Hausdorff measure",
        _STEP,
        (
            _GEODESIC + "test_aboba_on_a_gaussian_has_the_closed_form",
            _GEODESIC + "test_baoab_on_a_gaussian_is_exact",
            _GEODESIC + "test_von_mises_fisher_on_the_sphere",
            _GEODESIC + "test_the_bias_on_the_circle_is_of_second_order",
            _GEODESIC + "test_noise_that_is_known_is_compensated",
            _EXACTLY + "test_on_the_circle_a_half_step_leaves_a_quarter_of_the_bias",
            _EXACTLY + "test_a_mean_direction_has_its_conjugate_posterior",
            _EXACTLY + "test_a_uniform_target_stays_uniform_and_as_warm_as_its_dimension",
            _CHART,
        ),
        "geodesic",
    ),
    Law(
        "gsgnht",
        "gsgnht",
        "exp(-U - |v|²/2 - τ m (ξ - C)²/2), U by the Hausdorff measure",
        _STEP,
        (
            _GEODESIC + "test_von_mises_fisher_on_the_sphere",
            _GEODESIC + "test_the_thermostat_takes_up_isotropic_noise_of_unknown_size",
            _GEODESIC + "test_the_thermostat_counts_the_intrinsic_dimension",
            _GEODESIC + "test_a_thermostat_for_every_factor",
            _EXACTLY + "test_a_uniform_target_stays_uniform_and_as_warm_as_its_dimension",
            _EXACTLY + "test_a_thermostat_does_not_repair_anisotropic_noise",
            _CHART,
        ),
        "geodesic",
    ),
    Law(
        "gmc",
        "",
        "exp(-U), U by the Hausdorff measure",
        _EXACT,
        (
            _GEODESIC + "test_gmc_on_the_simplex_draws_the_dirichlet",
            "geodesic/test_sbc.py::test_ranks_are_uniform",
            _EXACTLY + "test_a_mean_direction_has_its_conjugate_posterior",
            _GEODESIC + "test_gmc_draws_truncated_normals",
            _GEODESIC + "test_geodesic_leapfrog_is_reversible_and_its_energy_error_is_of_second_order",
            _GEODESIC + "test_the_mean_of_exp_minus_the_energy_error_is_one",
        ),
        "geodesic",
    ),
    Law(
        "chmc",
        "",
        "exp(-U), U by the Hausdorff measure",
        "exact at every step, to the tolerance of the inner iterations",
        (
            _CHMC + "test_exact_draws_stay_exact_though_many_projections_fail",
            _CHMC + "test_a_trajectory_stays_on_the_manifold_and_is_reversible",
            _CHMC + "test_the_energy_error_is_of_second_order",
            _CHMC + "test_every_step_is_that_of_mici",
            _CHMC + "test_a_failed_projection_is_a_counted_rejection",
            _GEODESIC + "test_von_mises_fisher_on_the_sphere",
        ),
        "geodesic",
    ),
)
