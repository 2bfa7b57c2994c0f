"""Reports of migrations, replays and profiles, each as one HTML text: gathers the views and renders the templates.

Inline style and script are the only ones the page's content security policy lets run (by hash), and it lets nothing
load. Not here: writing the file (write).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import TYPE_CHECKING

from tapestry.errors import EnvironmentProblem
from tapestry.migration.result import MigrationResult
from tapestry.numerics.verdict import Verdict
from tapestry.profiling.result import ProfileResult
from tapestry.report import numbers
from tapestry.report.causes import group_blocked, group_findings
from tapestry.report.drift import drift_drawing
from tapestry.report.gauge import gauge
from tapestry.report.graph import graph_data, place_counts
from tapestry.report.header import ReportHeader
from tapestry.report.headline import check_lines, computed, headline
from tapestry.report.roofline import roofline
from tapestry.report.sources import source_line
from tapestry.report.timeline import timeline
from tapestry.suite.verdicts import ReplayResult, by_operator

if TYPE_CHECKING:
    import jinja2

#: Drawings are made for a wide and for a narrow screen; the style sheet shows one.
_WIDE, _NARROW = 980.0, 344.0
_POWER = re.compile(r"\d(?:\.\d+)?e-\d+")


def render_migration(result: MigrationResult, header: ReportHeader) -> str:
    """The page. EnvironmentProblem when jinja2 is missing."""
    environment = _environment()
    style, script = _asset("report.css"), _asset("report.js") + _asset("sort.js")
    causes = group_findings(result.findings)
    return environment.get_template("migration.html.j2").render(
        header=header,
        title=header.title or header.model,
        date=header.date.strftime("%Y-%m-%d %H:%M %Z").strip(),
        result=result,
        headline=headline(result),
        computed=computed(result),
        check_lines=check_lines(result.check),
        gauge=gauge(result.check),
        causes=causes,
        blocked=group_blocked(result.blocked, causes),
        verdicts=[str(verdict) for verdict in Verdict],
        drawings=[
            ("wide", timeline(result.steps, _WIDE)),
            ("narrow", timeline(result.steps, _NARROW)),
        ]
        if result.steps
        else [],
        drifts=[("wide", drift_drawing(result.drift, _WIDE)), ("narrow", drift_drawing(result.drift, _NARROW))]
        if result.drift
        else [],
        graph=graph_data(result.nodes),
        places=place_counts(result.nodes),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def render_replay(results: Sequence[ReplayResult], header: ReportHeader) -> str:
    """The page of a suite's replay, a section for each device. EnvironmentProblem when jinja2 is missing."""
    environment = _environment()
    style, script = _asset("report.css"), _asset("sort.js")
    failures = [entry for result in results for entry in result.failures]
    latent = sum(entry.latent for entry in failures)
    total = sum(len(result.results) for result in results)
    return environment.get_template("replay.html.j2").render(
        header=header,
        title=header.title or header.model,
        date=header.date.strftime("%Y-%m-%d %H:%M %Z").strip(),
        tone="good" if not failures else "partial" if latent == len(failures) else "bad",
        line=f"{total - len(failures):,} of {total:,} cases are right",
        detail=f"{len(failures):,} failed, {latent:,} of them on values and shapes that the model was not seen to have"
        if failures
        else "Nothing failed.",
        devices=[
            {
                "device": result.device,
                "backend": result.backend,
                "cases": len(result.results),
                "variants": sum(bool(entry.variant) for entry in result.results),
                "operators": by_operator(result.results),
                "failures": result.failures,
            }
            for result in results
        ],
        verdicts=[str(verdict) for verdict in Verdict],
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def render_profile(result: ProfileResult, header: ReportHeader) -> str:
    """The page of a profile. EnvironmentProblem when jinja2 is missing."""
    environment = _environment()
    style, script = _asset("report.css"), _asset("sort.js")
    there = [row for row in result.regions if row.place == "target"]
    drawn = [row for row in there if row.flops and row.nbytes and row.flops_per_second]
    return environment.get_template("profile.html.j2").render(
        header=header,
        title=header.title or header.model,
        date=header.date.strftime("%Y-%m-%d %H:%M %Z").strip(),
        result=result,
        regions=there,
        left=[row for row in result.regions if row.place != "target"],
        drawn=len(drawn),
        rooflines=[
            ("wide", roofline(drawn, result.roofs, _WIDE)),
            ("narrow", roofline(drawn, result.roofs, _NARROW)),
        ]
        if drawn
        else [],
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as error:
        raise EnvironmentProblem("the HTML report needs jinja2: pip install 'tapestry-ml[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tapestry.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Compact, in the order given; jinja2 escapes what could end the script element.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}
    environment.filters.update(FILTERS)
    return environment


def _keep(text: str) -> str:
    """Plain text as markup in which no number is broken at its minus sign."""
    import markupsafe

    escaped = str(markupsafe.escape(text))
    return markupsafe.Markup(_POWER.sub(r'<span class="keep">\g<0></span>', escaped))


#: What the templates call: ``{{ value|error }}``.
FILTERS: dict[str, Callable[..., object]] = {
    "error": numbers.error,
    "share": numbers.share,
    "number": numbers.count,
    "seconds": numbers.seconds,
    "duration": numbers.duration,
    "rate": numbers.rate,
    "of_roof": numbers.of_roof,
    "line": source_line,
    "nbytes": numbers.nbytes,
    "plural": numbers.plural,
    "keep": _keep,
}


def _asset(name: str) -> str:
    return (resources.files("tapestry.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """A source expression of a content security policy for an inline element with this text (CSP 3, 2.3.1)."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
