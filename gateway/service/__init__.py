"""The gateway as a service of the system: launchd on a Mac, systemd on Linux.

What is written and which commands run is decided purely (`launchd`, `systemd`); `steps` carries it
out, and takes it back where one step fails.
"""
