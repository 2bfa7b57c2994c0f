"""What holds for an adapter through wgpu-py holds for one in a browser's tab: the same tests, on the tab's device."""

from __future__ import annotations

import pytest

from runtime.test_webgpu import (
    test_a_copy_within_one_buffer,
    test_a_declaration_must_fit_the_source,
    test_a_restart_forgets_everything,
    test_a_source_that_does_not_build_quotes_the_compiler,
    test_arguments_are_checked,
    test_bytes_that_are_no_whole_words,
    test_grid_and_block_mean_groups_and_invocations,
    test_launches_run_in_order_with_scalars,
    test_other_modules_are_unsupported,
    test_scalars_differ_by_their_bits,
    test_ten_thousand_increments_in_one_batch_all_count,
    test_the_adapter_is_probed_for_loops_that_end_early,
    test_times_are_seconds_and_leave_no_trace_in_the_log,
    test_workgroup_memory_and_barriers,
    test_zero_sizes,
)

__all__ = [
    "test_a_copy_within_one_buffer", "test_a_declaration_must_fit_the_source", "test_a_restart_forgets_everything",
    "test_a_source_that_does_not_build_quotes_the_compiler", "test_arguments_are_checked",
    "test_bytes_that_are_no_whole_words", "test_grid_and_block_mean_groups_and_invocations",
    "test_launches_run_in_order_with_scalars", "test_other_modules_are_unsupported",
    "test_scalars_differ_by_their_bits", "test_ten_thousand_increments_in_one_batch_all_count",
    "test_the_adapter_is_probed_for_loops_that_end_early", "test_times_are_seconds_and_leave_no_trace_in_the_log",
    "test_workgroup_memory_and_barriers", "test_zero_sizes",
]  # fmt: skip

pytestmark = [pytest.mark.browser, pytest.mark.slow]
