"""Generated files of the repository: written, or with --check compared. As a program: all of them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

# in one process: most of the time of each is imports. Beside them gen_doc_outputs runs commands; tests compare those
GENERATORS = (
    *("gen_ops_header", "gen_schema_doc", "gen_detections_doc", "gen_metrics_doc", "gen_grafana_dashboard"),
    *("gen_commands_doc", "gen_events_doc", "gen_errors_doc", "gen_config", "gen_units"),
)


def write_or_check(path: Path, text: str) -> None:
    """Writes the file; with --check ends the program with an error where it is another one."""
    if "--check" not in sys.argv[1:]:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path.name} is out of date; run: make generate")


def main() -> None:
    """Runs each as the program that it is; what is wrong with one does not hide what is wrong with another."""
    wrong = []
    for name in GENERATORS:
        try:
            runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
        except SystemExit as end:
            if end.code:
                wrong.append(str(end.code))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
