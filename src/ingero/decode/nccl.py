"""Bit layout of communicator and sequence number in an NCCL call's record."""

SEQUENCE_BITS = 40  # COMMUNICATOR_SEQUENCE_BITS of bpf/communicators.h
SEQUENCE_MASK = (1 << SEQUENCE_BITS) - 1
