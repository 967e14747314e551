"""`ingero service`: units of systemd."""
