"""The address to listen on: trying it without listening, and the sentence about one that cannot be used."""

import errno
import socket

from svc.errors import ConfigError


def hosts(setting: str) -> list[str]:
    """The addresses of the setting `host`, which may be several with commas between."""
    return [host.strip() for host in setting.split(",")]


def is_free(setting: str, port: int) -> bool:
    """Whether the server could listen there now; False when another program does. ConfigError when it never could."""
    return all(_is_free(host, port) for host in hosts(setting))


def _is_free(host: str, port: int) -> bool:
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return False
        raise ConfigError(listening_problem(error, host, port)) from None
    return True


def listening_problem(error: Exception, host: str, port: int) -> str:
    """Why listening failed, in one sentence."""
    number = error.errno if isinstance(error, OSError) else None
    match number:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use by another program"
        case errno.EACCES:
            return f"port {port} on {host} may not be used by this user"
        case errno.EADDRNOTAVAIL:
            return f"host {host} is not an address of this machine"
    return f"cannot listen on host {host}, port {port}: {error}"
