"""Check and take the address that a server listens on, before anything that takes long."""

import errno
import ipaddress
import os
import socket
from typing import Any

from utaca.errors import UserError


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def url(host: str, port: int) -> str:
    """The address of a server, without a path."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bound(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to ``port`` of each address that ``host`` names, and return the sockets.

    Port 0 means a free port, the same for all addresses. Nobody can connect before the server listens on the sockets.
    Raises :class:`UserError`, naming ``--host`` or ``--port``, if ``host`` is empty, unknown or of another machine, or
    if the port is in use.
    """
    if not host.strip():
        # The system takes an empty name for every address, which would open the server to all.
        raise UserError(
            "--host is empty; give an address such as 127.0.0.1, or 0.0.0.0 for all addresses of this machine"
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"--host {host} is not an address of this machine; give an address such as 127.0.0.1 or 0.0.0.0"
        ) from error
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            unbound = socket.socket(family, kind, protocol)
        except OSError:  # this machine has no IPv6
            continue
        # If ``port`` is 0, the port that the system chose for the first address serves the others too.
        shared_port = sockets[0].getsockname()[1] if sockets else port
        try:
            _bind(unbound, (address[0], shared_port, *address[2:]))
        except OSError as error:
            unbound.close()
            if sockets and error.errno == errno.EADDRNOTAVAIL:
                # Not available here, for example IPv6 that is switched off; another address of the name is bound.
                continue
            for other in sockets:
                other.close()
            raise UserError(refused(host, port, error)) from error
        sockets.append(unbound)
    if not sockets:
        raise UserError(
            f"--host {host} is not an address of this machine; give an address such as 127.0.0.1 or 0.0.0.0"
        )
    return sockets


def _bind(unbound: socket.socket, address: tuple[Any, ...]) -> None:
    """Bind a socket to an address in the form of the socket's family; raises OSError if that is refused."""
    if os.name == "posix":
        # The port of a server that has just ended is free.
        unbound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if unbound.family == socket.AF_INET6:
        unbound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    unbound.bind(address)


def refused(host: str, port: int, error: OSError) -> str:
    """A sentence for the user: why ``error`` kept a socket from the address, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use; choose another with --port, or 0 for a free one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} may not be used by this user; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine; give an address such as 127.0.0.1 or 0.0.0.0"
    return f"--host {host} --port {port} cannot be listened on ({error.strerror}); choose another"
