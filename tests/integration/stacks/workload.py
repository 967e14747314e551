"""Makes traced calls from every kind of Python frame and writes down where each was made; runs in Python 3.8 and later.

usage: workload.py LIBCUDART TRUTH_FILE REUSED_ADDRESSES [FIRST_NUMBER]

A call is `cudaMemset(NULL, 0, number)`: the number comes back in the recording as its size. The truth, one JSON object a
line: {"number", "case", "frames": [[file, line, name], ...]}, innermost first.
"""

import asyncio
import ctypes
import functools
import itertools
import json
import os
import queue
import sys
import threading
import time

QUALIFIED = sys.version_info >= (3, 11)
numbers = itertools.count(int(sys.argv[4]) if len(sys.argv) > 4 else 1)
truth = []
released = ctypes.CDLL(sys.argv[1])  # ctypes lets go of the GIL around its calls
held = ctypes.PyDLL(sys.argv[1])
for library in (released, held):
    library.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]


def note(case):
    """The number of a call about to be made on the caller's line."""
    frames, frame = [], sys._getframe(1)
    while frame:
        code = frame.f_code
        frames.append([code.co_filename, frame.f_lineno, code.co_qualname if QUALIFIED else code.co_name])
        frame = frame.f_back
    number = next(numbers)
    truth.append({"number": number, "case": case, "frames": frames})
    return number


def call(number):
    released.cudaMemset(None, 0, number)


# `call` itself would be a frame of every stack: the cases below call the library directly
memset, memset_held = functools.partial(released.cudaMemset, None, 0), functools.partial(held.cudaMemset, None, 0)


def nested(depth):
    if depth:
        return nested(depth - 1)
    memset(note("nested"))
    memset_held(note("nested, GIL held"))
    return None


class Model:
    def __call__(self, value):
        return self.forward(value)

    def forward(self, value):
        inner = lambda scale: memset(note("lambda"))  # noqa: E731
        inner(2)
        return [memset(note("comprehension")) for _ in range(2)]

    @staticmethod
    def static():
        memset(note("static method"))

    @classmethod
    def of_class(cls):
        memset(note("class method"))

    @property
    def size(self):
        return memset(note("property"))

    def __enter__(self):
        memset(note("enter"))
        return self

    def __exit__(self, *_):
        memset(note("exit"))


def generator(count):
    for _ in range(count):
        memset(note("generator"))
        yield


def delegating():
    yield from generator(2)


async def coroutine():
    memset(note("coroutine"))
    await asyncio.sleep(0)
    memset(note("coroutine, resumed"))
    async for _ in async_generator():
        memset(note("async for"))


async def async_generator():
    memset(note("async generator"))
    yield 1


def decorated_by(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


@decorated_by
def decorated():
    memset(note("decorated"))


def several_lines():
    number = note("call over several lines")
    # the line of a call is that of its function
    truth[-1]["frames"][0][1] = sys._getframe().f_lineno + 1
    memset(
        number,
    )


def control_flow():
    try:
        with Model():
            memset(note("with"))
        raise KeyError
    except KeyError:
        memset(note("except"))
    finally:
        memset(note("finally"))
    for _ in range(2):
        memset(note("for"))
    while True:
        memset(note("while"))
        break
    {memset(note("set comprehension")) for _ in range(2)}
    list(memset(note("generator expression")) for _ in range(2))
    x = (memset(note("conditional")) if sys.argv else None) or memset(note("or"))
    return x


def through_c():
    list(map(lambda _: memset(note("map")), [1, 2]))
    sorted([3, 1, 2], key=lambda _: memset(note("sort key")) or 0)
    functools.reduce(lambda one, other: memset(note("reduce")), [1, 2, 3])
    "".join(str(memset(note("join"))) for _ in range(2))
    max([1, 2], key=functools.partial(lambda scale, _: memset(note("partial")) or 0, 2))


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@CALLBACK
def compare(one, other):
    memset(note("called back by libc"))
    return 0


def called_back():
    values = (ctypes.c_int * 3)(3, 1, 2)
    libc = ctypes.CDLL(None)
    libc.qsort(values, 3, ctypes.sizeof(ctypes.c_int), compare)


def generated():
    scope = {"memset": memset, "note": note}
    body = "\n" * 300 + "def big():\n" + "".join("    a%d = %d\n" % (i, i) for i in range(700))
    body += (
        "    memset(note('late line of a big function'))\n" + "\n" * 250 + "    memset(note('after a gap'))\nbig()\n"
    )
    exec(compile(body, "<generated>", "exec"), scope)
    for name, file in (("функция", "/tmp/файл_日本.py"), ("été", "/tmp/café.py"), ("𝒇", "/tmp/𝒇.py")):
        source = "def %s():\n\n    memset(note('other alphabets'))\n%s()\n" % (name, name)
        exec(compile(source, file, "exec"), dict(scope))
    eval("memset(note('eval'))")
    long_name = "n" * 300
    exec(compile("def %s():\n    memset(note('long name'))\n%s()" % (long_name, long_name), "<long>", "exec"), scope)


def reused_addresses(count):
    """Code objects that are freed at once, so that the next one gets the same address."""
    for index in range(count):
        time.sleep(0.004)  # a new code object per call is no program's habit, and each has to be sent
        source = "%sdef f%d():\n    memset(note('freed code'))\nf%d()\n" % ("\n" * (index % 7), index, index)
        exec(compile(source, "<freed %d>" % (index % 5), "exec"), {"memset": memset, "note": note})


def freed_by_another_thread(count):
    """The same, but another thread makes them and drops the last reference."""
    made, used = queue.Queue(), queue.Queue()

    def maker():
        for index in range(count):
            source = "%sdef f%d():\n    memset(note('freed by another'))\n" % ("\n" * (index % 7), index)
            scope = {"memset": memset, "note": note}
            exec(compile(source, "<other %d>" % (index % 5), "exec"), scope)
            made.put(scope.pop("f%d" % index))
            used.get()

    thread = threading.Thread(target=maker)
    thread.start()
    for _ in range(count):
        function = made.get()
        function()
        del function
        used.put(None)
        time.sleep(0.004)
    thread.join()


def traced():
    def tracer(frame, event, argument):
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        nested(1)
    finally:
        sys.settrace(before)


def foreign_threads():
    """Threads that Python did not make call into it."""
    start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    libc = ctypes.CDLL(None)
    libc.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]

    @start
    def body(_):
        memset(note("foreign thread"))

    for _ in range(3):
        thread = ctypes.c_ulong()
        libc.pthread_create(ctypes.byref(thread), None, body, None)
        libc.pthread_join(thread, None)


def hot():
    """Long enough for specialised and compiled code."""
    for index in range(20000):
        warm(index)


def warm(index):
    total = index * 2
    if index > 19990:
        memset(note("hot function"))
    return total + 1


def hot_loop():
    total = 0
    for index in range(40000):
        total += index
        if index > 39990:
            memset(note("hot loop"))
    return total


def threads(count):
    barrier = threading.Barrier(count)

    def body(index):
        barrier.wait()
        nested(index % 5)
        Model()(1)
        barrier.wait()

    running = [threading.Thread(target=body, args=(index,)) for index in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def sub_interpreter():
    """A call in an interpreter of its own, on this very thread."""
    try:
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        if sys.version_info >= (3, 13):
            made = interpreters.create("legacy")
        elif sys.version_info >= (3, 9):
            made = interpreters.create(isolated=False)
        else:
            made = interpreters.create()
    except (ImportError, RuntimeError):
        return
    number = next(numbers)
    source = (
        "import ctypes\nlibrary = ctypes.CDLL(%r)\nlibrary.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int,"
        % (sys.argv[1])
    )
    source += " ctypes.c_size_t]\ndef inside():\n    library.cudaMemset(None, 0, %d)\ninside()\n" % number
    run = interpreters.exec if hasattr(interpreters, "exec") else interpreters.run_string
    run(made, source)
    file = "<script>" if sys.version_info >= (3, 14) else "<string>"
    truth.append({"number": number, "case": "sub-interpreter", "frames": [[file, 5, "inside"], [file, 6, "<module>"]]})


def child_process():
    child = os.fork()
    if child == 0:
        del truth[:]
        for _ in range(100000):
            next(numbers)
        nested(2)
        threads(3)
        write(sys.argv[2] + ".child")
        os._exit(0)
    os.waitpid(child, 0)


def write(path):
    with open(path, "w") as file:
        for one in truth:
            file.write(json.dumps(one) + "\n")


def main():
    nested(0)
    nested(30)
    nested(100)
    Model()(1)
    Model.static()
    Model.of_class()
    Model().size
    list(delegating())
    asyncio.run(coroutine())
    decorated()
    several_lines()
    control_flow()
    through_c()
    called_back()
    generated()
    traced()
    foreign_threads()
    hot()
    hot_loop()
    reused_addresses(int(sys.argv[3]))
    freed_by_another_thread(int(sys.argv[3]) // 10)
    threads(40)
    child_process()
    sub_interpreter()  # last: 3.13.0 cannot fork after it
    write(sys.argv[2])


print("ready", flush=True)
sys.stdin.readline()
main()
print("done", flush=True)
sys.stdin.readline()
