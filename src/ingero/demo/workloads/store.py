"""A data store on TCP: a client sends how many bytes it wants, the store sends them."""

import argparse
import ctypes
import os
import socket
import struct
import sys
import threading

_REQUEST = struct.Struct("<Q")
_CHUNK = bytes(64 << 10)
_CLONE_NEWNET = 0x40000000
_CONGESTION_CONTROL = b"reno"  # every kernel has it; BBR, a usual default, holds back for 60 ms on a path of 5 us


def fetch(connection: socket.socket, nbytes: int) -> bytes:
    """Ask the store for `nbytes`; return them.

    Raises:
        ConnectionError: the store closed the connection.
    """
    connection.sendall(_REQUEST.pack(nbytes))
    content = bytearray(nbytes)
    view = memoryview(content)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise ConnectionError("the store closed the connection")
        view = view[received:]
    return bytes(content)


def serve_client(connection: socket.socket) -> None:
    """Answer one client's requests until it leaves."""
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or the last part waits for a delayed ACK
        while request := connection.recv(_REQUEST.size, socket.MSG_WAITALL):
            missing = _REQUEST.unpack(request)[0]
            while missing:
                missing -= connection.send(_CHUNK[: min(missing, len(_CHUNK))])


def main(arguments: list[str] | None = None) -> int:
    """Serve until killed; print `ready PID PORT` on stderr."""
    parser = argparse.ArgumentParser(prog="store", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes any free port")
    parser.add_argument("--own-network", action="store_true", help="serve in a new network namespace")
    options = parser.parse_args(arguments)
    if options.own_network and ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")
    with socket.create_server((options.host, options.port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _CONGESTION_CONTROL)
        print("ready", os.getpid(), listener.getsockname()[1], file=sys.stderr, flush=True)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=serve_client, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
