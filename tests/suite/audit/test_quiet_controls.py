"""No false alarms: platforms that compute right, and otherwise than eager, survive every case that an audit makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import quiet_controls
from tapestry.suite.audit.run import audit

#: Seconds for one platform: a few dozen cases on a slow machine, hundreds on a fast one.
SECONDS = 15.0


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_an_audit_reports_no_platform_that_is_right() -> None:
    result = audit(None, Path(quiet_controls.__file__), seconds=SECONDS, workers=2)
    assert result.faults == len(quiet_controls.CONTROLS)
    assert [(entry.fault, entry.by, entry.why) for entry in result.results if entry.killed] == []
    tried = {entry.fault for entry in result.results if entry.cases}
    assert tried == {control.name for control in quiet_controls.CONTROLS}
