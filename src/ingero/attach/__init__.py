"""BPF objects become links: the libbpf binding and the placing of probes."""
