#!/bin/sh
# Stops what runs, where the package goes for good (apt says so, rpm counts what remains); not in an upgrade.
case ${1:-} in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now ingero.service ingero-dashboard.service || true
	fi
	;;
esac
