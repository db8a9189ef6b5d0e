"""The figures of the recipe paper, in their quick version: the claims that the page relies on are measured, not set."""

import json

import pytest

pytest.importorskip("matplotlib", reason="experiments draw with matplotlib (fokker[plot])")


def test_figure_1_recovers_a_curl_and_refuses_where_there_is_none(tmp_path):
    from experiments.recipe import figure_1

    found = figure_1.main(quick=True, out=tmp_path)
    assert json.loads((tmp_path / "figure_1.json").read_text()) == found
    assert (tmp_path / found["image"]).stat().st_size > 10_000
    assert found["figure"] == "Figure 1"
    # Both theorems hold, what is outside is refused, and the printed closed form is wrong.
    assert [claim["holds"] for claim in found["claims"]] == [True, True, True, False]
    assert "does not leave the density invariant" in found["claims"][2]["measured"]


def test_figure_s4_finds_each_method_where_the_map_shows_it(tmp_path):
    from experiments.recipe import figure_s4

    found = figure_s4.main(quick=True, out=tmp_path)
    assert (tmp_path / found["image"]).stat().st_size > 10_000
    assert [claim["holds"] for claim in found["claims"]] == [True, True, False]
    assert "gSGRHMC: D adaptive, Q adaptive" in found["claims"][0]["measured"]
