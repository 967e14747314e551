"""Runs the call-rate torture (calls.c): T threads in each of P forked processes call every traced family."""

import os
import sys

from ingero.demo.workloads import native


def main(arguments: list[str] | None = None) -> int:
    """Build the program, then become it: --threads T --processes P --seconds S --rate CALLS_PER_S --gate FILE.

    It prints `loaded PID` and `ready PID` on stderr, and at the end one JSON line a process on stdout:
    {"pid", "longjmps", "calls": {name: count}, "failed": {name: count}}, counting only calls that it made itself.
    """
    program = str(native.build("calls"))
    os.execv(program, [program, *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    main()
