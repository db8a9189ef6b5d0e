"""Every space: which set, which measure, where its formulas are from, and the laws that tests hold it to.

`docs/make_spaces.py` makes the tables of docs/spaces.md from these rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import fokker


@dataclass(frozen=True)
class Row:
    """A space by an example, whose shape and dimension are shown."""

    call: str  # as a user writes it
    example: object
    set: str
    measure: str
    source: str
    laws: tuple[str, ...]  # keys of LAWS

    @property
    def name(self) -> str:
        return self.call.split("(")[0]


_MANIFOLDS = "manifolds/test_laws.py::"
_MAPPED = "manifolds/test_mapped.py::"
_IMPLICIT = "manifolds/test_implicit.py::"
_CHMC = "geodesic/test_chmc.py::"

LAWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "projector": (
        "The projection on the tangent space is idempotent, symmetric in the metric, its rank the dimension.",
        (
            _MANIFOLDS + "test_the_projection_is_idempotent_symmetric_and_leaves_tangents_alone",
            _MANIFOLDS + "test_the_rank_of_the_projection_is_the_dimension",
        ),
    ),
    "two forms": (
        "The projector by a basis of the tangent space and that by a basis of the normal space are one.",
        (_MANIFOLDS + "test_projectors_by_the_tangent_and_by_the_normal_basis_agree",),
    ),
    "flow": (
        "The flow stays on the manifold, keeps its speed, is reversible and a one-parameter group.",
        (
            _MANIFOLDS + "test_the_flow_stays_on_the_manifold_and_keeps_its_speed",
            _MANIFOLDS + "test_the_flow_is_a_one_parameter_group_and_reversible",
            _MANIFOLDS + "test_a_velocity_of_zero_stands_still",
        ),
    ),
    "geodesic": (
        "The flow solves the geodesic equation; the gradient is the slope along it.",
        (
            _MANIFOLDS + "test_the_flow_solves_the_geodesic_equation",
            _MANIFOLDS + "test_the_gradient_is_the_slope_along_every_tangent",
        ),
    ),
    "velocity": (
        "Random velocities are normal in the tangent space.",
        (_MANIFOLDS + "test_a_tangent_normal_vector_has_as_many_unit_variances_as_dimensions",),
    ),
    "float32": (
        "All of this in single precision.",
        (_MANIFOLDS + "test_in_single_precision_the_flow_has_the_same_laws",),
    ),
    "radius": (
        "In double precision, within a radius, the flow is right to the rounding of its entries.",
        (_MANIFOLDS + "test_within_its_radius_the_hyperboloid_keeps_its_digits",),
    ),
    "uniform": ("Random points are uniform.", (_MANIFOLDS + "test_random_points_are_uniform",)),
    "speed": (
        "At ten thousand times the usual speed the flow stays on the manifold.",
        (_MANIFOLDS + "test_a_huge_velocity_stays_on_a_compact_manifold",),
    ),
    "drift": (
        "In a million steps the point stays within 1e-6 of the manifold, in float32 within 1e-4.",
        (
            _MANIFOLDS + "test_with_retraction_there_is_no_drift",
            _MANIFOLDS + "test_with_retraction_there_is_no_drift_in_a_million_steps",
        ),
    ),
    "large": (
        "In a hundred thousand dimensions.",
        (_MANIFOLDS + "test_in_a_hundred_thousand_dimensions",),
    ),
    "map": (
        "Every point of the carrier has a value in the set, every value a point.",
        (
            _MAPPED + "test_every_value_is_inside_and_embeds_to_one_of_its_points",
            _MAPPED + "test_a_flow_through_the_boundary_comes_back_inside",
        ),
    ),
    "volume": (
        "Points weighted by the map's volume are uniform values; on a flat carrier it is the Jacobian's determinant.",
        (
            _MAPPED + "test_uniform_points_weighted_by_the_volume_are_uniform_values",
            _MAPPED + "test_on_flat_carriers_the_volume_is_that_of_the_jacobian",
        ),
    ),
    "boundary": (
        "At the boundary the density on the carrier vanishes, and near it the force points inside.",
        (_MAPPED + "test_at_the_boundary_the_density_vanishes_and_near_it_the_force_points_inside",),
    ),
    "constraint": (
        "The projector is that of the constraint's Jacobian; on known manifolds all agrees with these.",
        (
            _IMPLICIT + "test_the_projector_is_idempotent_symmetric_of_the_rank_of_the_dimension_and_kills_the_normals",
            _IMPLICIT + "test_it_agrees_with_the_manifold_that_is_known",
        ),
    ),
    "RATTLE": (
        "Steps keep to the manifold, are reversible, have an energy error of second order, and are those of mici.",
        (
            _CHMC + "test_a_trajectory_stays_on_the_manifold_and_is_reversible",
            _CHMC + "test_the_energy_error_is_of_second_order",
            _CHMC + "test_every_step_is_that_of_mici",
        ),
    ),
}

_FLOWS = ("projector", "flow", "geodesic", "velocity")
_COMPACT = ("uniform", "speed", "drift")
_MAPS = ("map", "volume", "boundary", "large")


def _sphere(x):
    return x @ x - 1


SPACES: tuple[Row, ...] = (
    Row("Euclidean(2, 3)", fokker.Euclidean(2, 3), "all arrays of a shape", "Lebesgue", "straight lines",
        (*_FLOWS, "float32", "large")),
    Row("Sphere(3)", fokker.Sphere(3), "$|x| = 1$ in $R^n$", "surface",
        "Liu, Zhu & Song 2016, eq. 7", (*_FLOWS, "two forms", "float32", *_COMPACT, "large")),
    Row("Oblique(3, 2)", fokker.Oblique(3, 2), "$k$ unit columns of length $n$", "surface",
        "the sphere's, by column", (*_FLOWS, "two forms", "float32", *_COMPACT, "large")),
    Row("Stiefel(5, 3)", fokker.Stiefel(5, 3), "$X^T X = I$, $n$ by $p$", "surface in $R^{np}$",
        "Byrne & Girolami 2013", (*_FLOWS, "two forms", "float32", *_COMPACT, "large")),
    Row("Orthogonal(4)", fokker.Orthogonal(4), "$X^T X = I$, $n$ by $n$", "surface in $R^{nn}$",
        "$X \\exp(t X^T V)$", (*_FLOWS, "two forms", "float32", *_COMPACT)),
    Row("Grassmann(5, 2)", fokker.Grassmann(5, 2), "subspaces, by an orthonormal frame", "the invariant one",
        "Edelman, Arias & Smith 1998", (*_FLOWS, "two forms", "float32", *_COMPACT, "large")),
    Row("Hyperboloid(3)", fokker.Hyperboloid(3), "$\\langle x, x \\rangle = -1$, $x_0 > 0$, float64 only",
        "hyperbolic volume", "Minkowski's form", (*_FLOWS, "two forms", "radius", "drift", "large")),
    Row("Simplex(4)", fokker.Simplex(4), "$\\theta_k > 0$, $\\sum_k \\theta_k = 1$", "Lebesgue on $K - 1$ entries",
        "$\\theta = x^2$ on the sphere; Lan, Zhou & Shahbaba 2014", _MAPS),
    Row("Positive(3)", fokker.Positive(3), "numbers above 0", "Lebesgue", "$\\theta = x^2$", _MAPS),
    Row("Ball(3)", fokker.Ball(3), "$|\\theta| < 1$", "Lebesgue",
        "the sphere $S^d$ from above; Lan, Zhou & Shahbaba 2014", _MAPS),
    Row("Box(0.0, np.ones(3))", fokker.Box(0.0, np.ones(3)), "low < $\\theta$ < high", "Lebesgue",
        "a circle for each entry", _MAPS),
    Row("HalfSpace(np.ones(3), 1.0)", fokker.HalfSpace(np.ones(3), 1.0), "normal $\\cdot\\, \\theta$ > offset",
        "Lebesgue", "$\\theta = x^2$ along the normal", _MAPS),
    Row("Implicit(lambda x: x @ x - 1, 3)", fokker.Implicit(_sphere, 3), "$c(x) = 0$", "surface",
        "RATTLE; Brubaker, Salzmann & Urtasun 2012", ("constraint", "RATTLE")),
)  # fmt: skip
