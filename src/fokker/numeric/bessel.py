"""Modified Bessel functions I_nu in the forms that the sphere needs: the ratio A = I_(nu+1) / I_nu, A', and log c.

    c_nu(kappa) = kappa^nu / ((2 pi)^(nu + 1) I_nu(kappa)),    d log c_nu / d kappa = -A_nu,    nu >= 0, kappa >= 0

I_nu itself leaves the range of floats (``scipy.special.ive`` is 0 at nu = 2499, kappa = 4000), so it is never made.
Debye's expansion (Olver; DLMF 10.41.3), written in m = sqrt(nu^2 + kappa^2), t = 1 / m and q = (nu t)^2, is a double
polynomial, smooth at kappa = 0 once nu log kappa has cancelled:

    log I_nu(kappa) = m + nu log(kappa / (nu + m)) - log(2 pi m) / 2 + sum_j t^j P_j(q)

Below ORDER it is taken some orders higher and stepped down by I_(nu-1) - I_(nu+1) = (2 nu / kappa) I_nu. The steps
are written in h = kappa (1 - A) / A and b = h - kappa h', that is A = kappa / (kappa + h), A' = b / (kappa + h)^2:

    h_nu = 2 (nu + 1) - A_(nu+1) h_(nu+1),    b_nu = 2 (nu + 1) - A_(nu+1)^2 b_(nu+1)

As nu + 1/2 <= h, b <= 2 (nu + 1), no digits cancel at any kappa, and errors shrink on the way down. The textbook
A' = 1 - A^2 - (2 nu + 1) A / kappa loses a factor kappa^2 / nu where kappa is large, and nu where it is small.

Departures from print: Liu, Zhu & Song (2016, suppl. F.3) add up the power series of I_nu in logarithms, which is right
and takes about kappa / 2 terms. A' - with no expansion for large kappa - and log c are written so that they keep their
digits everywhere, log c where it crosses 0 too; the inverse takes Newton steps until nothing changes.

The formulas are arithmetic on whatever ``xp`` computes with: floats or NumPy in ``vmf``, JAX in ``vmf_jax``. nu is a
float.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

ORDER = 25  # the expansion is used from here on,
TERMS = 12  # where this many terms reach rounding: ORDER^-TERMS < 2^-52


def _debye(terms: int) -> list[list[Fraction]]:
    """Coefficients of P_j in q, j = 1 .. terms. With p = nu t the sum is sum_j D_j(p) / nu^j, D_j = p^j P_j(p^2).

    It is the logarithm of sum_k U_k(p) / nu^k; from the recurrence of the U_k (DLMF 10.41.9) follows, for E_j = D_j'
    and r = p^2 (1 - p^2) / 2, that E_1 = (1 - 5 p^2) / 8 and E_(j+1) = (r E_j)' + r (E_1 E_(j-1) + .. + E_(j-1) E_1).
    """
    r = np.array([Fraction(c, 2) for c in (0, 0, 1, 0, -1)])  # coefficients of p^0, p^1, ...
    E = [np.array([Fraction(c, 8) for c in (1, 0, -5)])]  # E_j has 3 j of them
    for j in range(1, terms):
        product = np.convolve(r, E[-1])
        squares = (np.convolve(r, np.convolve(E[i], E[j - 2 - i])) for i in range(j - 1))
        E.append(sum(squares, product[1:] * np.arange(1, product.size)))
    return [[E[j - 1][n - 1] / n for n in range(j, 3 * j + 1, 2)] for j in range(1, terms + 1)]


_COEFFICIENTS = _debye(TERMS)


def _table(weight: Callable[[int], int]) -> list[list[float]]:
    """weight(n) times the coefficient of t^j q^i, n = j + 2 i, as [j - 1][i]."""
    return [[float(c * weight(j + 2 * i)) for i, c in enumerate(row)] for j, row in enumerate(_COEFFICIENTS, 1)]


# kappa-derivatives: (t^j q^i)' = -n kappa t^2 t^j q^i, so that A and A' take the same polynomials with other weights.
LOG_SUM, FIRST, SECOND = _table(lambda n: 1), _table(lambda n: n), _table(lambda n: n * (n + 2))


def _start(nu: float) -> tuple[int, float, int]:
    """Steps down to nu, the order of the expansion, and how many of its terms count there."""
    steps = max(0, math.ceil(ORDER - nu))
    return steps, nu + steps, min(TERMS, math.ceil(52 / math.log2(nu + steps)))


def _double_sum(table: list[list[float]], t: Any, q: Any, terms: int) -> Any:
    """sum_j t^j sum_i table[j - 1][i] q^i, by Horner's rule in both."""
    total: Any = 0.0
    for row in reversed(table[:terms]):
        inner: Any = row[-1]
        for c in row[-2::-1]:
            inner = inner * q + c
        total = (total + inner) * t
    return total


def _top(order: float, kappa: Any, m: Any, terms: int) -> tuple[Any, Any]:
    """h and loss at the order of the expansion, m = sqrt(order^2 + kappa^2).

    A = kappa (1 - loss) / (order + m) there, loss = (order + m) t^2 w with w = 1/2 + sum_ji n t^j q^i P_ji.
    """
    p = order / m
    loss = (1.0 + p) / m * (0.5 + _double_sum(FIRST, 1.0 / m, p * p, terms))
    return order * (order / (m + kappa)) + order + (order + m) * (loss / (1.0 - loss)), loss


def ratio(xp: Any, nu: float, kappa: Any) -> Any:
    """A = I_(nu+1) / I_nu."""
    steps, order, terms = _start(nu)
    h = _top(order, kappa, xp.hypot(order, kappa), terms)[0]
    for i in range(steps):
        h = 2.0 * (order - i) - kappa / (kappa + h) * h
    return kappa / (kappa + h)


def _h_and_b(xp: Any, nu: float, kappa: Any) -> tuple[Any, Any]:
    """h and b at nu.

    At the top, A' = order t / (order + m) - t^2 (w - (1 - q) v) with v = 1 + sum_ji n (n + 2) t^j q^i P_ji.
    """
    steps, order, terms = _start(nu)
    m = xp.hypot(order, kappa)
    h, loss = _top(order, kappa, m, terms)
    p = order / m
    v = 1.0 + _double_sum(SECOND, 1.0 / m, p * p, terms)
    b = (p * (order + m) - (1.0 + p) * (loss * m - (1.0 + p) * (1.0 - p * p) * v)) / ((1.0 - loss) * (1.0 - loss))
    for i in range(steps):
        A = kappa / (kappa + h)
        h = 2.0 * (order - i) - A * h
        b = 2.0 * (order - i) - A * A * b
    return h, b


def ratio_slope(xp: Any, nu: float, kappa: Any) -> Any:
    """A', the derivative of the ratio in kappa."""
    h, b = _h_and_b(xp, nu, kappa)
    return b / (kappa + h) / (kappa + h)


def first_guess(nu: float, R: Any) -> Any:
    """kappa with A(kappa) about R: R (d - R^2) / (1 - R^2), d = 2 nu + 2 (Banerjee et al. 2005); right at both ends."""
    return R * (2.0 * nu + 2.0 - R * R) / ((1.0 - R) * (1.0 + R))


def newton(xp: Any, nu: float, R: Any, kappa: Any, eps: float) -> Any:
    """One step of Newton's rule for R (kappa + h) - kappa = 0; kappa is left alone where it is right to 1.35 eps.

    R near 0 needs the digits of R - A, R near 1 those of 1 - R. As A' kappa <= A, what is left alone has A within
    3 ulp of R.
    """
    h, b = _h_and_b(xp, nu, kappa)
    residual = xp.where(R < 0.5, (R - kappa / (kappa + h)) * (kappa + h), R * h - (1.0 - R) * kappa)
    change = residual / ((1.0 - R) + R / kappa * (b - h))
    return xp.where(abs(change) > 1.35 * eps * kappa, kappa + change, kappa)


def log_c(xp: Any, nu: float, kappa: Any) -> Any:
    """log c_nu, from log c_i = log c_(i+1) + log 2 pi - log(kappa + h_i)."""
    steps, order, terms = _start(nu)
    m = xp.hypot(order, kappa)
    h = _top(order, kappa, m, terms)[0] if steps else None
    scale: Any = 1.0  # the product of (kappa + h) / m stays in range
    for i in range(steps):
        h = 2.0 * (order - i) - kappa / (kappa + h) * h
        scale = scale * ((kappa + h) / m)
    # log c crosses 0 as order * log x - m, at d = 10^5 the difference of two numbers near 6e5, whose rounding would
    # show. So the whole part of the logarithm is multiplied exactly, and m brings the rounding of its square root.
    x = (order + m) / (2 * math.pi)
    whole = xp.floor(xp.log(x))
    large, small = xp.maximum(order, kappa), xp.minimum(order, kappa)
    rounding_of_m = (small * (small / m) - (m - large) * ((m + large) / m)) / 2.0
    rest = order * xp.log(x * xp.exp(-whole)) - rounding_of_m + (0.5 - steps) * xp.log(m / (2 * math.pi))
    if steps:
        rest = rest - xp.log(scale)
    return order * whole - m + (rest - _double_sum(LOG_SUM, 1.0 / m, (order / m) ** 2, terms))
