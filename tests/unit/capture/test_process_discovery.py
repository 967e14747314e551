"""capture.processes.process_discovery: what is said of processes that are left out because of whose they are."""

from __future__ import annotations

import pytest

from ingero.capture.processes.process_discovery import left_out_text


@pytest.mark.parametrize(
    ("users", "parts"),
    [
        ({0: 1}, ("1 CUDA process of root", "--user root, or --user all")),
        ({0: 2, 4_000_000: 1}, ("2 CUDA processes of root and 1 CUDA process of uid 4000000", "--user all")),
        (dict.fromkeys(range(4_000_000, 4_000_005), 1), ("and those of 2 more users", "--user all")),
    ],
)
def test_whoever_is_left_out_is_counted_with_the_option_that_takes_them_in(
    users: dict[int, int], parts: tuple[str, ...]
) -> None:
    assert all(part in left_out_text(users) for part in parts)


def test_nobody_left_out_is_nothing_to_say() -> None:
    assert left_out_text({}) == ""
