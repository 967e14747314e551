"""`make test-stacks`: stacks against every interpreter that can be had, and against damaged ones."""
