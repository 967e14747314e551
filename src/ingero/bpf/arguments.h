/* SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause */
/* Arguments of a C call at its first instruction: integer slots 1-9 by the platform's ABI, and the return address. */
#pragma once
#include "maps.h"
#include "ops_gen.h"

#define ARGUMENT_SLOTS 16 /* a power of two: a slot is an index after masking; slot 0 reads as 0 */

struct arguments {
	u64 slot[ARGUMENT_SLOTS];
	u64 return_address;
};

/* clang would otherwise form `context + variable offset`, which the verifier refuses */
#define REGISTER(context, name)                                                                                        \
	({                                                                                                             \
		u64 value_ = (context)->name;                                                                          \
		OPAQUE(value_);                                                                                        \
		value_;                                                                                                \
	})

#if defined(__TARGET_ARCH_x86)
#define INSTRUCTION_POINTER(context) ((context)->ip)
#define STACK_POINTER(context) ((context)->sp)
#define STACK_POINTER_AT_ENTRY(context) ((context)->sp - 8) /* a return has popped the return address */
#define RETURN_VALUE(context) ((s32)(context)->ax)

INLINE u64 return_address(struct pt_regs *context)
{
	u64 address = 0;

	bpf_probe_read_user(&address, sizeof(address), (void *)STACK_POINTER(context));
	return address;
}

INLINE bool read_arguments(struct pt_regs *context, struct arguments *to)
{
	/* [sp] is the return address, then slots 7, 8, 9 */
	bool is_read = !bpf_probe_read_user(&to->slot[6], 32, (void *)STACK_POINTER(context));

	to->slot[0] = 0;
	/* 5.15 requires a stack array to be fully set before any of it is read at a variable index */
	__builtin_memset(&to->slot[10], 0, sizeof(to->slot) - 10 * sizeof(u64));
	to->return_address = to->slot[6];
	to->slot[1] = REGISTER(context, di);
	to->slot[2] = REGISTER(context, si);
	to->slot[3] = REGISTER(context, dx);
	to->slot[4] = REGISTER(context, cx);
	to->slot[5] = REGISTER(context, r8);
	to->slot[6] = REGISTER(context, r9);
	return is_read;
}
#elif defined(__TARGET_ARCH_arm64)
#define INSTRUCTION_POINTER(context) ((context)->pc)
#define STACK_POINTER(context) ((context)->sp)
#define STACK_POINTER_AT_ENTRY(context) ((context)->sp)
#define RETURN_VALUE(context) ((s32)(context)->regs[0])

INLINE u64 return_address(struct pt_regs *context)
{
	return REGISTER(context, regs[30]);
}

INLINE bool read_arguments(struct pt_regs *context, struct arguments *to)
{
	bool is_read = !bpf_probe_read_user(&to->slot[9], 8, (void *)STACK_POINTER(context));

	to->slot[0] = 0;
	__builtin_memset(&to->slot[10], 0, sizeof(to->slot) - 10 * sizeof(u64));
	to->return_address = REGISTER(context, regs[30]);
	to->slot[1] = REGISTER(context, regs[0]);
	to->slot[2] = REGISTER(context, regs[1]);
	to->slot[3] = REGISTER(context, regs[2]);
	to->slot[4] = REGISTER(context, regs[3]);
	to->slot[5] = REGISTER(context, regs[4]);
	to->slot[6] = REGISTER(context, regs[5]);
	to->slot[7] = REGISTER(context, regs[6]);
	to->slot[8] = REGISTER(context, regs[7]);
	return is_read;
}
#endif

/* Of a session program. A kernel function says the same but takes the context only since 7.0: no object fits both. */
INLINE bool is_at_return(struct pt_regs *context)
{
	return INSTRUCTION_POINTER(context) != bpf_get_func_ip(context);
}

/*
 * Since 6.13 a program's stack may be one per CPU, and a kernel with full or lazy preemption may let another thread run
 * the same program on it in between: both would continue with each other's values.
 */
#define ON_ITS_OWN_STACK(program)                                                                                      \
	({                                                                                                             \
		int result_;                                                                                           \
		bpf_preempt_disable();                                                                                 \
		result_ = (program);                                                                                   \
		bpf_preempt_enable();                                                                                  \
		result_;                                                                                               \
	})

/*
 * Two programs: `name` for kernels without those functions, where stacks are not shared, and `name`_own for the others.
 */
#define UPROBE(name, program)                                                                                          \
	SEC("uprobe") int name(struct pt_regs *context)                                                                \
	{                                                                                                              \
		return program;                                                                                        \
	}                                                                                                              \
	SEC("uprobe") int name##_own(struct pt_regs *context)                                                          \
	{                                                                                                              \
		return ON_ITS_OWN_STACK(program);                                                                      \
	}

INLINE u64 argument(const struct arguments *arguments, u32 slot)
{
	return arguments->slot[slot & (ARGUMENT_SLOTS - 1)];
}

INLINE u64 read_user_word(u64 address)
{
	u64 word = 0;

	if (address && bpf_probe_read_user(&word, sizeof(word), (void *)address))
		count_drop(DROP_USER_READ_FAILED, 1);
	return word;
}

/* The stream argument: the handle itself, or a field of the launch config that it points to. */
INLINE u64 stream_argument(const struct arguments *arguments, u64 cookie)
{
	u64 stream = argument(arguments, COOKIE_STREAM(cookie));

	if (COOKIE_FLAGS(cookie) & FLAG_STREAM_IN_CONFIG)
		stream = stream ? read_user_word(stream + STREAM_OFFSET_IN_CONFIG_BYTES) : 0;
	return stream;
}

/* `count` elements of an ncclDataType_t; 0 if this agent does not know the type. */
INLINE u64 typed_bytes(u64 count, u32 type)
{
	if (type < NCCL_DATATYPES)
		return count << (NCCL_DATATYPE_SHIFTS >> 2 * type & 3);
	count_drop(DROP_DATATYPE_UNKNOWN, 1);
	return 0;
}

INLINE u64 size_argument(const struct arguments *arguments, u64 cookie)
{
	u64 size = argument(arguments, COOKIE_SIZE(cookie));
	u32 times = COOKIE_TIMES(cookie);

	if (COOKIE_FLAGS(cookie) & FLAG_TYPED)
		return typed_bytes(size, argument(arguments, COOKIE_EXTRA(cookie)));
	return times ? size * argument(arguments, times) : size;
}
