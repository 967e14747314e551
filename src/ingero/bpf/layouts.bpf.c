// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause
/* Never loaded: carries the layouts of events.h to the agent as BTF, one global per type. */
#include "kernel.h"

struct call_record call_record;
struct epoch_record epoch_record;
struct offcpu_record offcpu_record;
struct lifecycle_record lifecycle_record;
struct host_record host_record;
struct communicator communicator;
struct communicator_record communicator_record;
struct host_total host_total;
struct cell cell;
struct kernel_cell kernel_cell;
struct kernel_handle kernel_handle;
struct kernel_name_record kernel_name_record;
struct allocation_key allocation_key;
struct allocation_site allocation_site;
struct memory_total memory_total;
struct culprit_key culprit_key;
struct culprit_value culprit_value;
struct process process;
struct admission admission;
struct settings settings;
struct thread_dump thread_dump;
struct python_layout python_layout;
struct python_frame python_frame;
struct python_stack_record python_stack_record;
struct python_code_record python_code_record;
struct native_stack_record native_stack_record;
struct sample_record sample_record;
struct parked_thread parked_thread;
struct deciding_words deciding_words;
enum thread_state thread_state;
enum waker_kind waker_kind;
enum loss loss;
enum call_flag call_flag;
enum epoch_flag epoch_flag;
enum lifecycle_kind lifecycle_kind;
enum memory_limit memory_limit;
enum communicator_kind communicator_kind;
enum admission_mode admission_mode;
enum host_kind host_kind;
enum host_flag host_flag;
enum python_instruction python_instruction;
enum python_flag python_flag;
enum python_code_flag python_code_flag;
enum sample_flag sample_flag;
