"""Facts that stand in two places agree: generated files, documentation, licences, the list of allowed skips."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ingero import __version__
from ingero.capture.loop.drops import MEANINGS
from ingero.ops import Flag, Kind
from tests.conftest import ALLOWED_SKIPS, is_allowed

ROOT = Path(__file__).resolve().parents[2]
BPF = ROOT / "src" / "ingero" / "bpf"
FOLDERS = ("src", "tests", "tools", "bench", "docs", ".ci")
EVERY_BPF_FILE = pytest.mark.parametrize("path", sorted(BPF.glob("*.[ch]")), ids=lambda path: path.name)
EVERY_PROGRAM = pytest.mark.parametrize("path", sorted(BPF.glob("*.bpf.c")), ids=lambda path: path.name)
EVERY_DECISION = pytest.mark.parametrize("path", sorted((ROOT / "docs/adr").glob("*.md")), ids=lambda path: path.name)
# "/home/a b" is a path in a test of odd paths: a name ends at a slash
PERSONAL_PATH = re.compile(r"(?<![\w}])/(?:home|Users)/[\w.-]+/|(?<![\w}/])/root/(?!\.\.\.)\w|(?<![\w}/.])/work/")


def text_files() -> list[Path]:
    """Every text of the source tree."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    found += [path for path in ROOT.iterdir() if path.is_file()]
    kinds = {".py", ".c", ".h", ".cpp", ".md", ".txt", ".toml", ".sh", ".sql", ""}
    return [path for path in found if path.suffix in kinds and "__pycache__" not in path.parts]


def table(markdown: str, heading: str) -> dict[str, str]:
    """First and second column of the table below a heading."""
    _, _, rest = markdown.partition(f"## {heading}\n")
    section = rest.partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip(): row[1].strip() for row in rows}


def test_the_generated_header_names_every_kind_and_flag() -> None:
    header = (BPF / "ops_gen.h").read_text()
    names = {f"KIND_{kind.name}" for kind in Kind} | {f"FLAG_{flag.name}" for flag in Flag}
    assert names <= set(re.findall(r"#define (\w+) ", header)) | {"KIND_NONE", "FLAG_NONE"}


def test_every_drop_counter_has_a_meaning_and_nothing_else_has() -> None:
    listed = re.search(r"enum drop \{(.*?)\};", (BPF / "events.h").read_text(), re.DOTALL)
    assert listed is not None
    names = [name.lower() for name in re.findall(r"\bDROP_(\w+)", re.sub(r"/\*.*?\*/", "", listed[1], flags=re.DOTALL))]
    assert (names[0], names[-1]) == ("none", "count")
    assert set(MEANINGS) == set(names[1:-1])


def test_times_beside_those_of_the_kernel_are_of_its_own_clock() -> None:
    package = ROOT / "src/ingero"
    files = [*(path for name in ("attach", "capture") for path in (package / name).rglob("*.py"))]
    files += [package / "serve/boot_clock.py", package / "discover/processes.py"]
    shifted = re.compile(r"\btime\.(?:monotonic_ns|clock_gettime|CLOCK_)")  # in a time namespace
    assert [path.name for path in files if shifted.search(path.read_text())] == []


def test_the_readme_has_exactly_two_set_up_commands() -> None:
    section = (ROOT / "README.md").read_text().partition("## Try it\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    commands = [line.partition("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert commands == ["make demo", "make test"]


def test_every_target_that_the_documents_name_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for document in ROOT.glob("*.md")
        for target in re.findall(r"(?:`|^|sudo )make ([a-z-]+)", document.read_text(), re.MULTILINE)
    }
    assert named
    assert named <= targets


def test_the_picture_of_the_folders_shows_those_that_exist() -> None:
    rows = table((ROOT / "ARCHITECTURE.md").read_text(), "Folders")
    listed = {name.strip("`/") for name in rows if name.endswith("/`")}
    package = ROOT / "src" / "ingero"
    folders = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert listed == folders


def test_the_registry_entry_of_the_mcp_server_has_the_names_and_versions_of_the_package() -> None:
    entry = json.loads((ROOT / "server.json").read_text())
    marker = re.search(r"<!-- mcp-name: (\S+) -->", (ROOT / "README.md").read_text())
    assert marker is not None
    assert entry["name"] == marker[1]
    [package] = entry["packages"]
    [source] = package["runtimeArguments"]
    assert {entry["version"], package["version"], source["value"].partition("==")[2]} == {__version__}


def anchors(markdown: str) -> set[str]:
    """The anchors of a document's headings, as GitHub and the site make them."""
    outside = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", title) for title in re.findall(r"^#+ (.+)$", outside, re.MULTILINE)]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.strip().lower())) for title in titles}


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "skills").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)\s#]*)#?([^)\s]*)\)", path.read_text()):
            to = path.parent / target if target else path
            if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to.read_text())):
                broken.append((path.name, target, anchor))
    assert broken == []


def test_pictures_of_documents_exist() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    shown = [
        path.parent / name
        for path in documents
        for names in re.findall(r"\bsrc(?:set)?=\"([^\"]+)\"|!\[[^]]*\]\(([^)\s#]+)", path.read_text())
        for name in names
        if name
    ]
    assert shown
    assert [str(path.relative_to(ROOT)) for path in shown if not path.is_file()] == []


@EVERY_DECISION
def test_a_decision_says_why_and_what_was_measured(path: Path) -> None:
    number = int(path.name[:4])
    text = path.read_text()
    assert text.startswith(f"# {number}. ")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Question", "Decision", "Evidence", "Consequences"]


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs/adr").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_decision_that_a_comment_cites_exists() -> None:
    cited = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in text_files()
        for name in re.findall(r"docs/adr/\d{4}[\w-]*\.md", path.read_text(errors="replace"))
    }
    assert [line for line in cited if not (ROOT / line.partition(": ")[2]).exists()] == []


@EVERY_BPF_FILE
def test_a_bpf_source_begins_with_its_licence(path: Path) -> None:
    assert "SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause" in path.read_text().splitlines()[0]


@EVERY_PROGRAM
def test_a_bpf_object_with_programs_tells_the_kernel_its_licence(path: Path) -> None:
    text = path.read_text()
    assert 'char LICENSE[] SEC("license") = "Dual BSD/GPL";' in text or not re.search(r"^SEC\(", text, re.MULTILINE)


def test_no_file_names_somebodys_home_directory() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {hit[0]}"
        for path in text_files()
        if path != Path(__file__)
        for hit in PERSONAL_PATH.finditer(path.read_text(errors="replace"))
    ]
    assert found == []


def test_every_source_of_the_package_says_its_one_job() -> None:
    sources = [path for path in (ROOT / "src").rglob("*.py") if path.read_text().strip()]
    assert [str(path.relative_to(ROOT)) for path in sources if not path.read_text().startswith('"""')] == []


@pytest.mark.parametrize(
    ("skip", "allowed", "answer"),
    [
        ("tests/a.py::test_b[1]: no disk", "tests/a.py::test_b[1]: no disk", True),
        ("tests/a.py::test_b[2]: no disk", "tests/a.py::test_b[1]: no disk", False),
        ("tests/a.py::test_b[1]: /tmp/x7 is no disk", "tests/a.py::test_b[1]: * is no disk", True),
        ("tests/a.py::test_b: another reason", "# tests/a.py::test_b: another reason", False),
        ("tests/a.py::test_b: no disk at all", "tests/a.py::test_b: no disk", False),
    ],
)
def test_a_skip_is_allowed_by_its_own_line_only(skip: str, allowed: str, answer: bool) -> None:
    assert is_allowed(skip, f"# why\n\n{allowed}\n") is answer


def test_an_allowed_skip_names_a_test_that_exists() -> None:
    lines = [line for line in ALLOWED_SKIPS.read_text().splitlines() if line and not line.startswith("#")]
    files = {line.partition("::")[0] for line in lines}
    assert [name for name in files if not (ROOT / name).is_file()] == []


SKIPPING = """
import pytest

@pytest.mark.skip(reason="nobody wrote it down")
def test_by_mark() -> None: ...

def test_by_call() -> None:
    pytest.skip("nobody wrote it down")

@pytest.mark.xfail(reason="known", strict=True)
def test_expected() -> None:
    raise AssertionError
"""


@pytest.mark.parametrize(("ci", "outcome"), [("true", "1 failed, 1 xfailed, 1 error"), ("", "2 skipped, 1 xfailed")])
def test_in_ci_a_skip_that_nobody_allowed_fails_the_run(tmp_path: Path, ci: str, outcome: str) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    plugins = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", tmp_path]
    environment = {"PATH": "/usr/bin:/bin", "CI": ci, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        [*command, tmp_path], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert outcome in done.stdout.splitlines()[-1]
    assert done.returncode == (1 if ci else 0)
