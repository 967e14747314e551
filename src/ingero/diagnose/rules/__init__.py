"""One file per cause; each holds `RULE` (ingero.diagnose.rule). A file is all it takes to add one."""
