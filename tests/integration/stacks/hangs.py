"""Two threads that hang in a call for ever, each after it has said where it is, and one that sleeps meanwhile.

Usage: hangs.py LIBCUDART. Runs under every interpreter from 3.8 on, so it uses nothing newer.
"""

import ctypes
import json
import sys
import threading

cudart = ctypes.CDLL(sys.argv[1])
stream = ctypes.c_void_p(0)
lock = threading.Lock()


def say_where():
    """Writes the frames of the caller, as they are while it executes the line that calls this."""
    frames = []
    frame = sys._getframe(1)
    while frame:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        frames.append([frame.f_code.co_filename, frame.f_lineno, name])
        frame = frame.f_back
    with lock:
        print(json.dumps({"tid": threading.get_native_id(), "frames": frames}), flush=True)


class Waiter:
    """Waits in a method, in a generator, in a lambda."""

    def wait(self):
        say_where(), cudart.cudaStreamSynchronize(stream)
        return 1

    def waits(self):
        yield from (self.wait() for _ in range(1))


def park():
    """Sleeps for ever."""
    threading.Event().wait()


def main():
    """Hangs in two threads."""
    threading.Thread(target=park, daemon=True).start()
    cudart.cudaMemsetAsync(ctypes.c_void_p(0), 0, ctypes.c_size_t(1 << 20), stream)
    waiter = Waiter()
    other = threading.Thread(target=lambda: list(waiter.waits()))
    other.start()
    sorted([1], key=lambda _: waiter.wait())


sys.stdin.readline()
main()
