"""A program's steps: found in what its calls repeat, and recorded as the kernel closes them."""
