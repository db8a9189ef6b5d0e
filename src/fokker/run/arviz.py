"""Draws as ArviZ wants them: a DataTree for ArviZ 1.x, an InferenceData for 0.x."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fokker.errors import InputError
from fokker.run.store import Store

if TYPE_CHECKING:
    import xarray


def to_arviz(draws: Store | Mapping[str, xarray.Dataset]) -> Any:
    """A store, or {"posterior": dataset, "sample_stats": dataset, ...}, as what the installed ArviZ works on.

    Values of a store are read from disk when they are looked at.
    """
    try:
        import arviz
    except ImportError as error:
        raise InputError("to_arviz needs ArviZ, which is not installed; try: pip install 'fokker[plot]'.") from error
    groups: dict[str, Any] = draws.groups() if isinstance(draws, Store) else dict(draws)
    if int(arviz.__version__.split(".")[0]) < 1:
        return arviz.InferenceData(**groups)
    import xarray

    return xarray.DataTree.from_dict(groups)
