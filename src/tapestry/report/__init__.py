"""Self-contained HTML reports: one file, no network, for a person to read. Free of torch.

``write_report(path, result, header)`` is the way in for a migration, ``write_replay_report`` for replays,
``write_profile_report`` for profiles. Not here: the JSON of the same facts (cli), and judging anything.
"""

from tapestry.report.header import ReportHeader
from tapestry.report.write import write_profile_report, write_replay_report, write_report

__all__ = ["ReportHeader", "write_profile_report", "write_replay_report", "write_report"]
