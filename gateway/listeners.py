"""Who listens on a port of this machine."""

from __future__ import annotations


def listener_of(port: int) -> str | None:
    """Name and pid of the program, None where nobody listens or the system does not tell."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status != psutil.CONN_LISTEN or connection.pid is None:
                continue
            if connection.laddr and connection.laddr.port == port:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return None  # macOS shows other users' sockets to root alone
    return None
