"""The checker of words: each retired word put back is named with file and line, each exception passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import user_texts
from check_vocabulary import Found, retired_in, summary
from retired_words import ALLOWED, RETIRED, allowed_spans
from user_texts import Kind, UserText

# By word: a sentence with it, and a name; "" where it is in sentences alone.
EXAMPLES: dict[str, tuple[str, str]] = {
    "epoch": ("it lasted 12 epochs", "epoch_flags"),
    "drain": ("it drains its stream often", "drain_run_ns"),
    "loss": ("100% of the loss is explained", "ingero.losses"),
    "device empty": ("the GPU: device empty", "empty_runq_ns"),
    "device busy": ("device busy 53% of wall time", "x_ns"),
    "picked up late": ("the result was picked up late", "p_ns"),
    "while enqueuing": ("while it was enqueuing", "enqueue_run_ns"),
    "a_ns, f_ns, s_ns, r_ns, b_ns": ("from a_ns to b_ns", "r_low_ns"),
    "lane": ("the main lane", "lane"),
    "on the path": ("the thread on its path slept", ""),
    "feeding thread": ("the thread that feeds the GPU", ""),
    "starving device": ("before a starving device", ""),
    "the device": ("waits for the device", ""),
    "best regime": ("against its best regime", "usual_p50_ns"),
    "step class": ("noise of that step class", "class_key"),
    "without demand": ("time without demand", ""),
    "clocks (of a thread)": ("its eight clocks", "clock_seconds"),
    "account": ("the whole account", "account"),
    "others ran": ("runnable, others ran", ""),
    "against its will": ("off the CPU against its will", ""),
    "by its own choice": ("it slept by its own choice", ""),
    "asleep": ("it was asleep", "asleep_ns"),
    "waiting for disk": ("it was waiting for disk", ""),
    "blocked in the kernel": ("it was blocked in the kernel", "kernel_lock_ns"),
    "gave the CPU away": ("it gave the CPU away", ""),
    "kept off by a quota": ("kept off by its quota", ""),
    "parked": ("a parked thread", "parked_ns"),
    "switches": ("4 switches", ""),
    "preemptions": ("12 of them preemptions", "preemptions"),
    "handed over between threads": ("handed over between threads", ""),
    "the device itself": ("the rest is the device itself", ""),
    "victim": ("its worst victim", "victims"),
    "taker": ("the largest taker", "takers"),
    "went before it": ("tasks that went before it", ""),
    "charged": ("it is charged to them", "charges"),
    "targets": ("threads of the targets", "ingero_targets"),
    "machine": ("the whole machine", ""),
    "control group": ("one control group", ""),
    "crowding": ("crowding by neighbors", "crowding"),
    "finds no slot": ("a process that finds no slot", ""),
    "known by": ("known by: exact sums", ""),
    "try:": ("then try: nice -n 19", ""),
    "noticed": ("what its process noticed", ""),
    "who took the time": ("who took the time", ""),
    "where the lost time went": ("where the lost time went", ""),
    "how it came and went": ("how it came and went", ""),
    "the numbers behind it": ("the numbers behind it", ""),
    "see the incidents": ("see the incidents", ""),
    "goes on": ("since 12:00, and it goes on", "incidents_going_on"),
    "for as long as it was seen": ("slow for as long as it was seen", ""),
    "stretch": ("in two stretches", "stretches"),
    "in its worst second": ("85% in its worst second", ""),
    "lost share": ("the lost share", ""),
    "not evaluated": ("causes not evaluated", "not_evaluated"),
    "looked at": ("not every cause was looked at", ""),
    "told": ("what cannot be told apart", ""),
    "moment": ("at that moment", ""),
    "whom": ("for whom it waited", ""),
    "who": ("Say who did it.", ""),
    "lost or repaired": ("lost or repaired: 3", ""),
    "governor": ("the governor stepped in", "governor"),
    "rung": ("the highest rung", "rung"),
    "thrift": ("a level of thrift", "thrift"),
    "given up": ("what was given up", "given_up"),
    "removed, folded": ("folded into minutes", "removed"),
    "samples (view)": ("rows of view samples", ""),
    "the rare, the slow and a sample": ("the rare, the slow and a sample", ""),
    "open call": ("its open calls", "open_calls"),
    "inside others": ("calls inside others", ""),
    "longest sum first": ("longest sum first", ""),
    "given back, in vain": ("asked for in vain", ""),
    "mend, befall": ("what mends it", ""),
    "story, scene": ("the story of a leak", "story"),
    "say whether, ask a recording": ("say whether it can run", ""),
    "hidden-synchronisation": ("see hidden-synchronization", "hidden-synchronisation"),
    "gpu-shared, gpu-steal": ("see gpu-shared here", "gpu-shared"),
    "call-in-flight": ("see call-in-flight here", "call-in-flight"),
    "page-fault-storm": ("see page-fault-storm here", "page-fault-storm"),
    "network-file-wait": ("see network-file-wait here", "network-file-wait"),
    "timer-sleep": ("see timer-sleep here", "timer-sleep"),
    "NN %": ("85 % of wall time", ""),
    "us (unit)": ("it took 12 us", ""),
    "neighbour": ("its neighbours", "neighbour_ns"),
    "colour": ("one colour each", "colour"),
    "behaviour": ("this behaviour", "behaviour"),
    "honour": ("it honours NO_COLOR", "honoured"),
    "favour": ("in favour of it", "favoured"),
    "labour, harbour, rumour": ("a flavour of it", "flavour"),
    "-ise": ("unsynchronised threads", "gpu_utilisation"),
    "-yse": ("it analysed them", "analysed"),
    "cancelled": ("it was cancelled", "cancelled"),
    "labelled": ("labelled runs", "labelled_runs"),
    "doubled l": ("a modelled cost", "signalled"),
    "judgement": ("a judgement", "judgements"),
    "centre, metre, fibre, litre": ("in the centre", "centre"),
    "licence, defence, offence": ("a licence", "licence"),
    "grey": ("a grey area", "grey"),
    "artefact": ("an artefact", "artefacts"),
    "whilst, amongst": ("whilst it ran", ""),
    "learnt, spelt, burnt": ("what it learnt", ""),
    "programme": ("a programme", "programme"),
    "fulfil, enrol, skilful": ("it fulfils them", ""),
    "sceptic, ageing, mould": ("a sceptical reader", ""),
}

# What may be said although a retired word is in it; a path where that matters.
FINE = (
    "in Unix epoch seconds",
    "one epoch of the data, ten epochs of training data",
    "after each training epoch",
    "for epoch in range(3):",
    "kubectl drain node-1, and nodes are drained",
    "a node in state DRAIN",
    "use loss.detach(), not loss.item()",
    "loss = model(batch)",
    "the training loss is printed, packet loss is not",
    "a PCIe link of 16 lanes, not of fewer lanes",
    "a block device, and the name of its block device",
    "copies from host to device",
    "the service account of the agent takes it into account",
    "system clocks and GPU clocks",
    "the state TASK_PARKED",
    "vLLM's counter of preemptions",
    "CONFIG_PREEMPT_DYNAMIC of this kernel",
    "the OOM killer's victim",
    "memory charged to the cgroup",
    "the scrape target of Prometheus, a build target",
    "WantedBy=multi-user.target",
    "--target x86_64",
    "a virtual machine for machine learning, by /etc/machine-id",
    "three samples of a stack",
    "the cpufreq governor, set to the performance governor",
    "at first look",
    "two milliseconds at a stretch",
    "wait for a moment",
    "there was a second try: it failed too",
    "a Python on the path of the shell",
    "it switches off and turns to us",
    "three requests for the disk devices: the whole device",
    "the kernel locks of the file system",
    "in this case it cannot account them",
    "its service_account_name",
    "machine-readable",
    "it is quiet, it came late, and the file is empty",
    "a rule that accounts for it",
    "the analyses of 12 USD",
    "an initialized, optimized and synchronized program",
    "what a % b gives in Python",
)
FINE_IN = (
    ("examples/grafana/ingero.json", '      "targets": ['),
    ("docs/commands.md", "the alias gpu-steal of the scenario"),
    ("docs/measurements/2026-11-25.md", "late in loss-1-block.s27"),
    ("docs/kernels.md", "tests.kernels 6.12 --suite accounts"),
    ("src/ingero/store/older/earlier_names.py", '    "hidden-synchronisation": "unexpected-sync",'),
    ("src/ingero/store/older/older_values.py", "launches are not traced: epochs are not comparable"),
)

Writer = Callable[[str], str]


def markdown(sentence: str) -> str:
    return f"# Title\n\nA text\nin which {sentence}\nstands.\n"


def code_block(sentence: str) -> str:
    return f"```\n$ ingero explain\n\n{sentence}\n```\n"


def literal(sentence: str) -> str:
    return f'"""Module."""\n\n\ndef text(count: int) -> str:\n    return f"{{count}} times, {sentence}"\n'


def joined(sentence: str) -> str:
    return f'"""Module."""\n\nTEXT = (\n    "A sentence, "\n    "{sentence}"\n)\n'


def help_of_command(sentence: str) -> str:
    return f'"""Module."""\n\n\n@click.command("x")\ndef x() -> None:\n    """{sentence}"""\n'


def tag(sentence: str) -> str:
    return f"// a comment\nexport function X() {{\n  return <p>Now {sentence}</p>;\n}}\n"


def attribute(sentence: str) -> str:
    return f'// a comment\n\n\nexport const X = <p title="Now {sentence}" />;\n'


def comment(sentence: str) -> str:
    return f"a: 1\n# {sentence}\n"


# A kind of text: its file, its reader, how a sentence gets into one, and the line that it stands on.
TEXTS = (
    ("docs/x.md", user_texts.markdown, markdown, 4),
    ("README.md", user_texts.markdown, code_block, 4),
    ("src/ingero/diagnose/causes/cpu/x.py", user_texts.python, literal, 5),
    ("src/ingero/serve/x.py", user_texts.python, joined, 5),
    ("src/ingero/cli/x.py", user_texts.python, help_of_command, 6),
    ("web/src/x.tsx", user_texts.typescript, tag, 3),
    ("web/src/x.tsx", user_texts.typescript, attribute, 4),
    ("configs/ingero.yaml", user_texts.plain, comment, 2),
    ("deploy/systemd/ingero.service", user_texts.plain, comment, 2),
)
WORDS = {word.word: word for word in RETIRED}


def found_in(texts: Iterator[UserText], root: Path) -> list[Found]:
    return list(retired_in(texts, root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def written(root: Path, path: str, text: str) -> str:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, "utf-8")
    return text


def test_every_retired_word_has_an_example() -> None:
    assert EXAMPLES.keys() == WORDS.keys()
    assert len(WORDS) == len(RETIRED)
    assert all(word.instead for word in RETIRED)
    assert all(bool(word.name) >= bool(EXAMPLES[word.word][1]) for word in RETIRED)


@pytest.mark.parametrize(("path", "reads", "put", "line"), TEXTS, ids=[put.__name__ for _, _, put, _ in TEXTS])
def test_each_word_that_is_put_back_is_named_with_file_and_line(
    root: Path, path: str, reads: Callable[[str, str], Iterator[UserText]], put: Writer, line: int
) -> None:
    missed = []
    for word, (sentence, _) in EXAMPLES.items():
        if WORDS[word].help_only and put is not help_of_command:
            continue
        text = written(root, path, put(sentence))
        found = [one for one in found_in(reads(text, path), root) if one.word.word == word]
        is_named = all(str(one).endswith(f" -> {WORDS[word].instead}") for one in found)
        if not is_named or {(one.path, one.line) for one in found} != {(path, line)}:
            missed.append((word, sentence, [str(one) for one in found]))
    assert not missed


@pytest.mark.parametrize(("path", "reads", "put", "line"), TEXTS, ids=[put.__name__ for _, _, put, _ in TEXTS])
def test_a_text_without_any_passes(
    root: Path, path: str, reads: Callable[[str, str], Iterator[UserText]], put: Writer, line: int
) -> None:
    assert line
    for sentence in FINE:
        text = written(root, path, put(sentence))
        assert found_in(reads(text, path), root) == [], sentence


@pytest.mark.parametrize(("path", "text"), FINE_IN)
def test_what_is_right_in_one_file_alone(path: str, text: str, root: Path) -> None:
    assert found_in(user_texts.plain(text, path), root) == []
    assert found_in(user_texts.plain(text, "src/ingero/serve/x.py"), root) != []


def test_no_exception_is_without_use() -> None:
    texts = [("x", text) for text in FINE] + list(FINE_IN)
    unused = [one for one in ALLOWED if not any(any(allowed_spans(text, path, (one,))) for path, text in texts)]
    assert unused == []
    assert all(one.reason for one in ALLOWED)


NAMES = [(word, name) for word, (_, name) in EXAMPLES.items() if name]


@pytest.mark.parametrize(("word", "name"), NAMES, ids=[word for word, _ in NAMES])
def test_each_name_that_is_put_back_is_found(word: str, name: str, root: Path) -> None:
    column = name.replace(".", "_").replace("-", "_")
    schema_json, module, metrics = (
        "src/ingero/cli/x.schema.json",
        "src/ingero/serve/x.py",
        "src/ingero/serve/metrics/x.py",
    )
    keys = f'{{\n  "properties": {{\n    "{name}": {{"type": "string"}}\n  }}\n}}\n'
    view = f"CREATE VIEW x AS\nSELECT a AS {column}\nFROM raw_x;\n"
    interface = f"interface X {{\n  {column}: number;\n}}\n"
    kinds: dict[str, tuple[str, Iterator[UserText], int]] = {
        "json": (schema_json, user_texts.json_schema(keys, schema_json), 3),
        "dict": (module, user_texts.python(f'X = {{\n    "{name}": 1,\n}}\n', module), 2),
        "metric": (metrics, user_texts.python(f'\nX = gauge("{name}")\n', metrics), 2),
        "markdown": ("docs/x.md", user_texts.markdown(f"See\n`{name}`.\n", "docs/x.md"), 2),
    }
    if "-" not in name:
        kinds["interface"] = ("web/src/api.ts", user_texts.typescript(interface, "web/src/api.ts"), 2)
        table = "CREATE TABLE raw_x (\n  a INTEGER\n);\n"
        kinds["column"] = ("views.sql", user_texts.sql_names(table, view, "schema.sql", "views.sql"), 2)
    for kind, (path, texts, line) in kinds.items():
        found = [(one.path, one.line) for one in found_in(texts, root) if one.word.word == word]
        assert (path, line) in found, (kind, name)


def test_names_of_views_are_read(root: Path) -> None:
    schema = "CREATE TABLE raw_x (\n  samples INTEGER\n);\n"
    views = "-- One row for each epoch.\nCREATE VIEW samples AS\nSELECT samples FROM raw_x;\n"
    found = found_in(user_texts.sql_names(schema, views, "schema.sql", "views.sql"), root)
    assert [(one.path, one.line, one.word.word) for one in found] == [
        ("views.sql", 2, "samples (view)"),  # the column is a number of samples
        ("views.sql", 1, "epoch"),
    ]


def test_what_nobody_reads_is_not_read(root: Path) -> None:
    text = '''"""The governor."""

import re

_X = re.compile(r"drain a lane")
QUERY = "SELECT a FROM raw_epochs e WHERE e.lane = 1"


def drain(lane: "dict[str, Epoch]") -> None:
    """Drain a lane."""  # a comment on epochs
    assert lane, "no epoch of a lane"
'''
    assert found_in(user_texts.python(text, "src/ingero/serve/x.py"), root) == []


def test_a_summary_counts_per_word_and_folder() -> None:
    texts = [
        UserText("docs/x.md", 1, Kind.PROSE, "an epoch, and another epoch"),
        UserText("src/ingero/serve/mcp/x.py", 1, Kind.PROSE, "85 %"),
    ]
    lines = summary(list(retired_in(texts))).splitlines()
    assert lines[0] == "3 retired words in 2 files"
    assert {line.strip() for line in lines[2:]} == {"", "2  epoch", "1  NN %", "2  docs", "1  src/ingero/serve"}
