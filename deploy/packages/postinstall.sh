#!/bin/sh
# Makes the user of the units and has systemd read them. It enables and starts nothing: `ingero service install` does.
# What runs already is this version from now on, because parts of a program that were exchanged under it do not fit it.
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers ingero.conf || echo "ingero: no user for the service; systemd-sysusers ingero.conf makes it" >&2
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	systemctl try-restart ingero.service ingero-dashboard.service || true
fi
