"""What an audit says: findings, the limits they are held against, and the colour they come to."""

from __future__ import annotations

import dataclasses
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.stats import norm

from fokker.errors import InputError

if TYPE_CHECKING:
    from rich.console import Group

Verdict = Literal["ok", "warn", "fail", "not measured"]
Colour = Literal["green", "amber", "red"]

# When is a law wrong enough to say so? (warn, fail): relative errors of an sd, errors of a mean in sd.
SD = (0.05, 0.10)
MEAN = (0.10, 0.25)
DRIFT = (0.10, 0.50)  # of the mean from the first to the last third
R_HAT = (1.02, 1.05)
ESS = (400, 100)
KSD = (0.10, 0.15)  # as the common relative error of the sds of a Gaussian law
SCALE = (0.03, 0.10)  # of the stochastic gradient's mean
KINETIC = (0.03, 0.10)
MODE = (1e-3, 1e-2)  # weight of an unseen mode against the seen one
UNEVEN = (2.0, np.inf)  # 95 % quantile over median of a gradient's size, against that of a normal law; never fails
STILL = (0.05, 0.50)  # share of draws that equal the one before
REFUSED = (0.80, 0.95)  # the same where proposals may be refused
REJECTIONS = (1e-3, 0.05)  # share of divergences, of inner iterations that failed
FALSE_ALARMS = 0.003  # chance of one over all coordinates of a finding: of some ten findings, few warn by chance


@dataclass(frozen=True)
class Finding:
    """One thing that was measured, or could not be."""

    name: str
    value: float | None
    threshold: float | None  # beyond which there is a warning
    verdict: Verdict
    evidence: str  # what was seen, and what to change


@dataclass(frozen=True)
class Audit:
    """All findings and what they come to. ``print(audit)`` shows a table."""

    verdict: Colour
    words: str  # which draws to trust and what to change
    findings: tuple[Finding, ...]
    draws: int  # of each chain that were looked at
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Audit:
        """What ``to_dict`` gave, as an Audit again."""
        return cls(**{**kept, "findings": tuple(Finding(**f) for f in kept["findings"])})

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.name == name:
                return finding
        raise InputError(f"no finding {name!r}; there are {', '.join(f.name for f in self.findings)}.")

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        style = {"green": "bold green", "amber": "bold yellow", "red": "bold red"}[self.verdict]
        words = Text.assemble((self.verdict.upper(), style), f": {self.words}\n")
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("", no_wrap=True)
        table.add_column("finding", min_width=13)
        table.add_column("value", justify="right", no_wrap=True)
        table.add_column("limit", justify="right", no_wrap=True)
        table.add_column("evidence", ratio=1)
        mark = {"ok": "ok", "warn": "WARN", "fail": "FAIL", "not measured": "?"}
        number = lambda x: "" if x is None else f"{x:.3g}"
        for f in self.findings:
            table.add_row(mark[f.verdict], f.name, number(f.value), number(f.threshold), Text(f.evidence))
        return Group(words, table)

    def __str__(self) -> str:
        from rich.console import Console

        width = min(max(shutil.get_terminal_size((100, 24)).columns, 72), 120)
        console = Console(width=width, file=io.StringIO(), color_system=None)
        with console.capture() as shown:
            console.print(self)
        return "\n".join(line.rstrip() for line in shown.get().splitlines())

    __repr__ = __str__


def missing(name: str, why: str) -> Finding:
    """A finding that could not be measured."""
    return Finding(name, None, None, "not measured", why)


def grade(value: float, limits: tuple[float, float]) -> Verdict:
    """Large is bad; NaN is worse than anything."""
    warn, fail = limits
    return "ok" if value <= warn else "warn" if value <= fail else "fail"


def excused(verdict: Verdict, error: float, limits: tuple[float, float]) -> str:
    """What is added to the evidence of an error that is large enough to count and may be chance."""
    return " Beyond the limit, within its error." if verdict == "ok" and abs(error) > limits[0] else ""


def significant(d: int) -> float:
    """Standard errors beyond which one of d coordinates is off, with a chance of FALSE_ALARMS for any."""
    return float(norm.isf(FALSE_ALARMS / (2 * d)))


class Worst(NamedTuple):
    """The error that counts most among those of all coordinates."""

    value: float
    coordinate: int
    verdict: Verdict  # "not measured" where an error that matters could be there unseen


def worst(errors: np.ndarray, standard_errors: np.ndarray, limits: tuple[float, float]) -> Worst:
    """Only errors that are significant are held against the limits; all have to be known to half of what fails."""
    shown = np.abs(errors) > significant(len(errors)) * standard_errors
    i = int(np.argmax(np.abs(errors) * np.where(shown, 1.0, 1e-6)))
    verdict = grade(float(np.abs(errors[i])), limits) if shown.any() else "ok"
    if verdict == "ok" and not float(np.max(standard_errors)) < limits[1] / 2:
        i = int(np.argmax(np.nan_to_num(standard_errors, nan=np.inf)))
        verdict = "not measured"
    return Worst(float(errors[i]), i, verdict)


def overall(findings: Sequence[Finding]) -> tuple[Colour, str]:
    """The colour and the sentence above the table."""
    by = lambda verdict: [f.name for f in findings if f.verdict == verdict]
    failed, warned, unknown = by("fail"), by("warn"), by("not measured")
    if "KSD, all rows" not in unknown:  # says more than the one of minibatches, whose gradients may be too noisy
        unknown = [name for name in unknown if name != "KSD, minibatches"]
    if failed:
        also = f" Also look at: {', '.join(warned)}." if warned else ""
        return "red", f"Do not use these draws: {', '.join(failed)} failed.{also} The table says what to change."
    if warned or unknown:
        words = []
        if warned:
            words.append(
                f"Use means and sds with care ({', '.join(warned)}); tails and small probabilities not at all."
            )
        if unknown:
            words.append(f"Not measured, so not certified: {', '.join(unknown)}.")
        return "amber", " ".join(words)
    return "green", (
        f"All quantities can be used: nothing measured is off by more than {SD[0]:.0%} of an sd in spread or "
        f"{MEAN[0]:.1f} sd in mean."
    )
