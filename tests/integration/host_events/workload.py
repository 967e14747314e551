"""Small programs that the tests trace: `workload.py NAME ARGUMENT...` waits for a line, works, prints a JSON object."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

BLOCK_BYTES = 64 * 1024


def direct_io(path: str, count: str, mode: str) -> dict[str, int]:
    """Writes or reads `count` blocks past the page cache; each call is one request of the device."""
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    memory = mmap.mmap(-1, BLOCK_BYTES)
    begin_ns = time.monotonic_ns()
    for index in range(int(count)):
        if mode == "write":
            os.pwrite(fd, memory, index * BLOCK_BYTES)
        else:
            os.preadv(fd, [memory], index * BLOCK_BYTES)
    wall_ns = time.monotonic_ns() - begin_ns
    os.close(fd)
    return {"wall_ns": wall_ns, "begin_ns": begin_ns, "tid": threading.get_native_id()}


def submit_many(path: str, count: str) -> dict[str, int]:
    """Writes `count` pages past the page cache, 32 KiB apart, all handed over in one io_submit(2)."""
    number = int(count)
    setup, submit, get_events = {"x86_64": (206, 209, 208), "aarch64": (0, 2, 4)}[platform.machine()]
    system = ctypes.CDLL(None, use_errno=True).syscall
    fd, memory = os.open(path, os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    layout = "<QIIHhIQQq16x"  # struct iocb (uapi/linux/aio_abi.h); operation 1 is IOCB_CMD_PWRITE
    blocks = (struct.pack(layout, 0, 0, 0, 1, 0, fd, address, mmap.PAGESIZE, at * 32768) for at in range(number))
    buffers = [ctypes.create_string_buffer(block, len(block)) for block in blocks]
    pointers = (ctypes.c_void_p * number)(*map(ctypes.addressof, buffers))
    context, events = ctypes.c_ulong(), ctypes.create_string_buffer(32 * number)
    done = system(setup, number, ctypes.byref(context)) or system(submit, context, ctypes.c_long(number), pointers)
    taken = system(get_events, context, ctypes.c_long(done), ctypes.c_long(done), events, None)
    return {"submitted": done, "completed": taken, "error": ctypes.get_errno()}


def write_back(path: str) -> dict[str, int]:
    """Dirties pages and asks for the disk's cache to be flushed."""
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, os.urandom(BLOCK_BYTES), 0)
    os.fsync(fd)
    os.close(fd)
    return {}


def touch_mapped(path: str) -> dict[str, int]:
    """Reads each page of a file through a mapping, after its pages were dropped from the cache."""
    with Path(path).open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        memory = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)
        before = _major_faults()
        for offset in range(0, len(memory), mmap.PAGESIZE):
            memory[offset]
        return {"major_faults": _major_faults() - before}


def _major_faults() -> int:
    return int(Path("/proc/self/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[9])


def touch_anonymous(pages: str) -> dict[str, int]:
    """Touches so many new pages, one fault each."""
    memory = mmap.mmap(-1, int(pages) * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, len(memory), mmap.PAGESIZE):
        memory[offset] = 1
    return {}


def allocate(size_bytes: str) -> dict[str, int]:
    """Takes memory until it has so much, or is killed."""
    kept = [bytearray(os.urandom(1 << 20)) for _ in range(int(size_bytes) >> 20)]
    return {"mebibytes": len(kept)}


def read_file(path: str) -> dict[str, int]:
    """Reads a file through the page cache."""
    total = 0
    with Path(path).open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            total += len(data)
    return {"bytes": total}


def compact() -> dict[str, int]:
    """Compacts the host's memory."""
    Path("/proc/sys/vm/compact_memory").write_text("1", encoding="ascii")
    return {}


def wait_for_signal() -> dict[str, int]:
    """Waits for SIGUSR1."""
    signal.sigwait({signal.SIGUSR1})
    return {}


def exchange(count: str, size_bytes: str) -> dict[str, int]:
    """Sends `count` messages to itself over TCP, looks at each first, and receives it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    size = int(size_bytes)
    receives = 0
    with sender, receiver:
        for _ in range(int(count)):
            sender.sendall(bytes(size))
            receiver.recv(size, socket.MSG_PEEK)
            left = size
            while left:
                left -= len(receiver.recv(left))
                receives += 1
        ports = {"sender": sender.getsockname()[1], "receiver": receiver.getsockname()[1]}
    return {"receives": receives, **ports}


def serve(family: str, port: str) -> dict[str, int]:
    """Receives one TCP connection to its end."""
    with socket.create_server(("", int(port)), family=socket.AddressFamily(int(family))) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
    total = 0
    with connection:
        while data := connection.recv(1 << 16):
            total += len(data)
    return {"bytes": total}


def send(family: str, host: str, port: str, size_bytes: str) -> dict[str, int]:
    """Sends so much over one TCP connection and waits until all of it has arrived."""
    with socket.socket(socket.AddressFamily(int(family)), socket.SOCK_STREAM) as connection:
        connection.connect((host, int(port)))
        source = connection.getsockname()[1]
        connection.sendall(bytes(int(size_bytes)))
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
    return {"port": source}


def main() -> None:
    """Says it is ready, waits for a line, works, prints the result."""
    name, *arguments = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(globals()[name](*arguments)), flush=True)
    sys.stdin.readline()  # stays until the test has looked at it


if __name__ == "__main__":
    main()
