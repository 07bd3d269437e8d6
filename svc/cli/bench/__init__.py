"""`headrace bench MODEL`: tokens a second through the scheduler and the device, without HTTP, on made-up token ids."""

from svc.cli.bench.command import add_command

__all__ = ["add_command"]
