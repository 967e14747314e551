"""The tests that need another kernel: guests are booted under qemu and run the capture tests. See docs/kernels.md."""
