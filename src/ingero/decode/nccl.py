"""Where an NCCL call's record keeps its communicator and its place in that communicator's sequence."""

SEQUENCE_BITS = 40  # COMMUNICATOR_SEQUENCE_BITS of bpf/communicators.h
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
