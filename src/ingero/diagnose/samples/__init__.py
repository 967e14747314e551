"""Stack samples of threads: the lines at which time was spent, and the kind of process that they show."""
