"""Lines get their colors where they are printed, and nothing in them can bring escapes of its own."""

from __future__ import annotations

import re

import pytest

from ingero.diagnose.comparison.change_verdict import Verdict
from ingero.diagnose.findings import Severity
from ingero.serve.text.styled_lines import comparison_line, incident_change, report_lines
from ingero.serve.text.styles import Line, Style, cells, folded, has_color, marked, painted, plain

HIGH, BOLD, CYAN, END = "\x1b[1;31m", "\x1b[1m", "\x1b[36m", "\x1b[0m"

# The report as it was laid out at first, and as it is laid out with a column of section titles.
BY_WORD = """\
1 incident found (1 HIGH)

HIGH  cpu-contention  [incident 1]
  python [4100] lost 4.25 s waiting for a CPU while backup (4711) ran
  2025-10-09 08:53:24 to 08:53:29 (5.01 s)
  culprit: backup [4711]  2.09 s, 114 switches
  try: lower their weight
       sudo renice -n 19 -p $(ls /proc/4711/task)
  try: or nothing at all

python [4100]: GPU busy 53% of the time; see incidents above
"""
BY_COLUMN = """\
1 incident found (1 HIGH)

HIGH  cpu-contention  [incident 1]  2025-10-09 08:53:24 to 08:53:29 (5.01 s)

  python [4100] lost 4.25 s waiting for a CPU while backup (4711) ran

  Impact        4.25 s lost, 85% of wall time
                23.3 syncs/s (baseline 153, -85%)
  Fix           Lower their CPU priority:
                  sudo renice -n 19 -p $(ls /proc/4711/task)
                Or nothing at all
  Culprits      backup [4711]  2.09 s
                  of a container

python [4100]: GPU busy 53% of wall time; see incidents above
"""


def styled(report: str) -> dict[Style, list[str]]:
    """The pieces of a report that have a style."""
    found: dict[Style, list[str]] = {}
    for line in report_lines(report.splitlines()):
        for text, style in [] if isinstance(line, str) else line:
            if style is not None:
                found.setdefault(style, []).append(text)
    return found


@pytest.mark.parametrize("report", [BY_WORD, BY_COLUMN])
def test_the_text_of_a_report_stays_as_it_was(report: str) -> None:
    assert [plain(line) for line in report_lines(report.splitlines())] == report.splitlines()


@pytest.mark.parametrize("report", [BY_WORD, BY_COLUMN])
def test_severity_headline_and_commands_are_marked(report: str) -> None:
    found = styled(report)
    assert found[Style.HIGH] == ["1 HIGH", "HIGH"]
    assert found[Style.COMMAND] == ["sudo renice -n 19 -p $(ls /proc/4711/task)"]
    assert "cpu-contention" in found[Style.HEADING]
    assert "python [4100] lost 4.25 s waiting for a CPU while backup (4711) ran" in found[Style.HEADING]


def test_section_titles_are_headings() -> None:
    headings = styled(BY_COLUMN)[Style.HEADING]
    assert [one for one in headings if " " not in one] == ["cpu-contention", "Impact", "Fix", "Culprits"]


@pytest.mark.parametrize("severity", Severity)
def test_every_severity_has_a_style(severity: Severity) -> None:
    [line] = report_lines([f"{severity.name}  cpu-contention  [incident 1]"])
    assert not isinstance(line, str)
    assert line[0][0] == severity.name
    assert line[0][1] in (Style.HIGH, Style.MEDIUM, Style.LOW)


@pytest.mark.parametrize(
    ("headline", "style"),
    [
        ("No incident found.", Style.OK),
        ("No incidents found. For 3 s, some causes could not be checked.", Style.OK),
        ("No incident found in what was traced: for 3 s not every cause could be looked at.", Style.WARNING),
        ("No verdict: the recording has no GPU syncs, so lost time cannot be measured.", Style.WARNING),
    ],
)
def test_a_headline_is_colored_by_what_it_says(headline: str, style: Style) -> None:
    assert list(styled(headline)) == [style]


def test_a_verdict_of_a_comparison_is_marked_at_either_end() -> None:
    assert comparison_line("worse: +21.3% time (noise 1.0%)") == (
        ("worse", Style.FAILED),
        (": +21.3% time (noise 1.0%)", None),
    )
    for verdict in (Verdict.BETTER, Verdict.WORSE, Verdict.NEW, Verdict.GONE):
        line = comparison_line(f"cpu-contention   -   1 (85 % lost)  {verdict.value}")
        assert not isinstance(line, str)
        assert line[-1][0] == verdict.value
    assert comparison_line(f"cudaFree  5 us > 5 us  {Verdict.SAME.value}") == (
        f"cudaFree  5 us > 5 us  {Verdict.SAME.value}"
    )


@pytest.mark.parametrize(
    "line",
    [
        "13:55:03  incident 1 opened: HIGH cpu-contention since 13:55:01: python [7] lost 1 s",
        "13:55:03  incident 1 opened  HIGH cpu-contention since 13:55:01: python [7] lost 1 s",
    ],
)
def test_an_incident_that_opens_shows_its_severity(line: str) -> None:
    found = incident_change(line)
    assert not isinstance(found, str)
    assert [span for span in found if span[1]] == [("HIGH", Style.HIGH), ("cpu-contention", Style.HEADING)]
    assert plain(found) == line


def test_an_escape_in_a_name_is_shown_and_ours_are_written() -> None:
    hostile = "HIGH  cpu-contention  \x1b[2J\x1b]0;owned\x07 [incident 1]"
    [line] = report_lines([hostile])
    text = painted(line, is_colored=True)
    assert re.findall(r"\x1b[^m]*m", text) == [HIGH, END, BOLD, END]
    assert "\x07" not in text
    assert r"\x1b[2J\x1b]0;owned\x07" in text
    assert "\x1b" not in painted(line, is_colored=False)


def test_only_the_sixteen_colors_are_used() -> None:
    every: Line = tuple((style.name, style) for style in Style)
    codes = re.findall(r"\x1b\[([\d;]+)m", painted(every, is_colored=True))
    numbers = {int(number) for code in codes for number in code.split(";")}
    assert numbers <= {0, 1, 2, *range(31, 38)}
    assert not numbers & {34, 37}, "blue and white: there is a usual background that they cannot be read on"


def test_marks_keep_what_is_between_them() -> None:
    assert marked("a bc d", (2, 4, Style.OK)) == (("a ", None), ("bc", Style.OK), (" d", None))
    assert marked("abc", (0, 3, Style.OK)) == (("abc", Style.OK),)


@pytest.mark.parametrize(
    ("environ", "on_terminal", "elsewhere"),
    [
        ({"TERM": "xterm"}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_the_environment_says_whether_there_are_colors(
    environ: dict[str, str], on_terminal: bool, elsewhere: bool
) -> None:
    assert has_color(environ, is_terminal=True) is on_terminal
    assert has_color(environ, is_terminal=False) is elsewhere


def broken(line: Line, width: int) -> list[str]:
    return [plain(one) for one in folded(line, width)]


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("one two three", ["one two three"]),
        ("one two three four", ["one two three", "  four"]),
        ("  one two three four", ["  one two three", "  four"]),
        ("  1. two three four", ["  1. two three", "     four"]),
        ("  Fix  two three four", ["  Fix  two three", "       four"]),
        ("one_two_three_four five", ["one_two_three_four", "  five"]),
        ("", [""]),
    ],
)
def test_a_line_is_broken_between_words_below_where_its_text_begins(line: str, lines: list[str]) -> None:
    assert broken(line, 16) == lines


def test_a_command_is_left_to_the_terminal() -> None:
    command = marked("  sudo renice -n 19 -p 4711", (2, 27, Style.COMMAND))
    assert list(folded(command, 20)) == [command]


def test_rows_of_a_table_are_broken_between_the_same_columns() -> None:
    table = [
        "  call                   count      total       p50",
        "  cudaLaunchKernel      70,320     352 ms   5.00 us",
        "  cudaMemcpyAsync            8    15.3 ms   10.0 us",
    ]
    assert [broken(row, 40) for row in table] == [
        ["  call                   count", "        total       p50"],
        ["  cudaLaunchKernel      70,320", "       352 ms   5.00 us"],
        ["  cudaMemcpyAsync            8", "      15.3 ms   10.0 us"],
    ]
    assert [broken(row, 52) for row in table] == [[row] for row in table]


def test_a_broken_line_keeps_its_styles_and_its_words() -> None:
    line = marked("  a headline that is long, and more", (2, 25, Style.HEADING), (27, 35, Style.WARNING))
    lines = list(folded(line, 14))
    assert [style for one in lines for text, style in one if text.strip(" ,")] == [
        Style.HEADING, Style.HEADING, Style.HEADING, Style.WARNING, Style.WARNING,
    ]  # fmt: skip
    assert " ".join(plain(one).strip() for one in lines) == plain(line).strip()
    assert max(cells(plain(one)) for one in lines) <= 14


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_no_word_of_a_report_is_lost_at_any_width(width: int) -> None:
    for line in report_lines(f"{BY_WORD}{BY_COLUMN}".splitlines()):
        lines = broken(line, width)
        assert " ".join(" ".join(lines).split()) == " ".join(plain(line).split())
