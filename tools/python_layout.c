/*
 * Prints where the interpreter that these headers belong to keeps what a stack walk needs, as one JSON object.
 * Up to 3.12: offsets in the structures themselves. From 3.13: positions in _Py_DebugOffsets, which every process carries.
 */
#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#if PY_VERSION_HEX >= 0x030e0000
#include <internal/pycore_debug_offsets.h>
#elif PY_VERSION_HEX >= 0x03090000
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#else
#include <frameobject.h>
#include <internal/pycore_pystate.h>
#endif
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030d0000
#include <internal/pycore_frame.h>
#elif PY_VERSION_HEX < 0x030b0000
#include <frameobject.h>
#endif

static const char *separator = "";

static void print(const char *name, size_t value)
{
	printf("%s\"%s\": %zu", separator, name, value);
	separator = ", ";
}

#define OFFSET(name, structure, member) print(name, offsetof(structure, member))

int main(void)
{
	printf("{");
#if PY_VERSION_HEX >= 0x030d0000
#define AT(name, member) OFFSET(name, _Py_DebugOffsets, member)
	print("size", sizeof(_Py_DebugOffsets));
	AT("runtime.interpreters", runtime_state.interpreters_head);
	AT("interpreter.next", interpreter_state.next);
	AT("interpreter.threads", interpreter_state.threads_head);
	AT("thread.previous", thread_state.prev);
	AT("thread.next", thread_state.next);
	AT("thread.interpreter", thread_state.interp);
	AT("thread.thread_id", thread_state.thread_id);
	AT("thread.frame", thread_state.current_frame);
	AT("frame.previous", interpreter_frame.previous);
	AT("frame.code", interpreter_frame.executable);
	AT("frame.instruction", interpreter_frame.instr_ptr);
	AT("frame.owner", interpreter_frame.owner);
	AT("code.filename", code_object.filename);
	AT("code.name", code_object.name);
	AT("code.qualname", code_object.qualname);
	AT("code.line_table", code_object.linetable);
	AT("code.first_line", code_object.firstlineno);
	AT("code.instructions", code_object.co_code_adaptive);
	AT("bytes.size", bytes_object.ob_size);
	AT("bytes.data", bytes_object.ob_sval);
	AT("interpreter.gc", interpreter_state.gc);
	AT("gc.collecting", gc.collecting);
	AT("string.state", unicode_object.state);
	AT("string.length", unicode_object.length);
	AT("string.ascii_data", unicode_object.asciiobject_size);
#if PY_VERSION_HEX >= 0x030e0000
	AT("frame.copy", interpreter_frame.tlbc_index);
	AT("code.copies", code_object.co_tlbc);
	AT("interpreter.freed_code", interpreter_state.code_object_generation);
#endif
#else
	OFFSET("runtime.interpreters", _PyRuntimeState, interpreters.head);
	OFFSET("interpreter.next", PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030b0000
	OFFSET("interpreter.threads", PyInterpreterState, threads.head);
#else
	OFFSET("interpreter.threads", PyInterpreterState, tstate_head);
#endif
#if PY_VERSION_HEX >= 0x03090000
	OFFSET("interpreter.gc", PyInterpreterState, gc);
	OFFSET("gc.collecting", struct _gc_runtime_state, collecting);
#endif
	OFFSET("thread.previous", PyThreadState, prev);
	OFFSET("thread.next", PyThreadState, next);
	OFFSET("thread.interpreter", PyThreadState, interp);
	OFFSET("thread.thread_id", PyThreadState, thread_id);
#if PY_VERSION_HEX >= 0x030b0000
	OFFSET("thread.frame", PyThreadState, cframe);
	OFFSET("cframe.frame", _PyCFrame, current_frame);
	OFFSET("frame.previous", _PyInterpreterFrame, previous);
	OFFSET("frame.code", _PyInterpreterFrame, f_code);
	OFFSET("frame.instruction", _PyInterpreterFrame, prev_instr);
	OFFSET("frame.owner", _PyInterpreterFrame, owner);
	OFFSET("code.qualname", PyCodeObject, co_qualname);
	OFFSET("code.instructions", PyCodeObject, co_code_adaptive);
#else
	OFFSET("thread.frame", PyThreadState, frame);
	OFFSET("frame.previous", PyFrameObject, f_back);
	OFFSET("frame.code", PyFrameObject, f_code);
	OFFSET("frame.instruction", PyFrameObject, f_lasti);
#endif
	OFFSET("code.filename", PyCodeObject, co_filename);
	OFFSET("code.name", PyCodeObject, co_name);
#if PY_VERSION_HEX >= 0x030a0000
	OFFSET("code.line_table", PyCodeObject, co_linetable);
#else
	OFFSET("code.line_table", PyCodeObject, co_lnotab);
#endif
	OFFSET("code.first_line", PyCodeObject, co_firstlineno);
	OFFSET("bytes.size", PyVarObject, ob_size);
	OFFSET("bytes.data", PyBytesObject, ob_sval);
	OFFSET("string.state", PyASCIIObject, state);
	OFFSET("string.length", PyASCIIObject, length);
	print("string.ascii_data", sizeof(PyASCIIObject));
	print("string.wide_data", sizeof(PyCompactUnicodeObject));
#endif
	printf("}\n");
	return 0;
}
