"""The real nginx on a free loopback port, in a directory of its own, with ops/nginx/headrace.conf or another site."""

import asyncio
import os
import re
import shutil
import socket
from pathlib import Path
from types import TracebackType

import pytest

ROOT = Path(__file__).parents[2]
BINARY = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
needs_nginx = pytest.mark.skipif(BINARY is None, reason="nginx is not installed")
SITE = (ROOT / "ops" / "nginx" / "headrace.conf").read_text()

# What a distribution has around a site, and the worst of it: everything is compressed, streams too.
_AROUND = """
{user}
worker_processes 1;
pid {prefix}/nginx.pid;
error_log {prefix}/error.log info;
events {{ worker_connections 256; }}
http {{
    access_log {prefix}/access.log;
    client_body_temp_path {prefix}/body;
    proxy_temp_path {prefix}/proxy;
    fastcgi_temp_path {prefix}/fastcgi;
    uwsgi_temp_path {prefix}/uwsgi;
    scgi_temp_path {prefix}/scgi;
    gzip on;
    gzip_min_length 1;
    gzip_proxied any;
    gzip_types *;
    include {prefix}/site.conf;
}}
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def site(upstream: str, port: int, **directives: str) -> str:
    """headrace.conf between `port` and `upstream` (host:port), with other values of directives that it has."""
    text = _once(r"server 127\.0\.0\.1:8080;", f"server {upstream};", SITE)
    text = _once(r"listen 80;", f"listen 127.0.0.1:{port};", text)
    text = _once(r"listen \[::\]:80;", "", text)
    for name, value in directives.items():
        text = _once(rf"\b{name} [^;]+;", f"{name} {value};", text)
    return text


def _once(pattern: str, replacement: str, text: str) -> str:
    changed, count = re.subn(pattern, replacement, text)
    assert count == 1, f"{pattern} is in headrace.conf {count} times"
    return changed


class Nginx:
    """`async with Nginx(prefix, site_text, port) as proxy`: answers on `proxy.url` from entering to leaving."""

    def __init__(self, prefix: Path, text: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._prefix, self._port = prefix, port
        (prefix / "site.conf").write_text(text)
        # As root nginx gives its rights up to a user who cannot enter pytest's directories.
        user = "user root;" if os.geteuid() == 0 else ""
        (prefix / "nginx.conf").write_text(_AROUND.format(prefix=prefix, user=user))

    def errors(self) -> str:
        return (self._prefix / "error.log").read_text()

    async def __aenter__(self) -> "Nginx":
        assert BINARY is not None
        config, log = self._prefix / "nginx.conf", self._prefix / "error.log"
        command = [BINARY, "-p", str(self._prefix), "-c", str(config), "-e", str(log), "-g", "daemon off;"]
        self._process = await asyncio.create_subprocess_exec(*command)
        while not await self._answers():
            assert self._process.returncode is None, self.errors()
            await asyncio.sleep(0.01)  # another process: there is nothing to wait on
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return False
        writer.close()
        return True
