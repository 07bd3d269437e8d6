"""`headrace chat [MODEL]`: a conversation in the terminal, with a model file or with a server that is running."""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from svc.cli.conversation import Conversation
from svc.cli.loading import DEVICE_KEYS
from svc.cli.options import MEMORY_KEYS, METADATA_KEYS, add_options, load
from svc.errors import ConfigError, HeadraceError

if TYPE_CHECKING:  # slow to import
    from svc.cli.client import ChatClient, Reply

SERVER_KEYS = tuple(dict.fromkeys((*DEVICE_KEYS, *MEMORY_KEYS, "model_name", "chat_template_file", *METADATA_KEYS)))
SETTINGS = (
    ("max-tokens", int, "N", "longest answer, in tokens"),
    ("temperature", float, "X", "0 takes the likeliest token every time"),
    ("top-p", float, "X", "draw from the likeliest tokens that have this probability together"),
    ("top-k", int, "N", "draw from this many of the likeliest tokens"),
    ("min-p", float, "X", "draw from tokens with at least this share of the likeliest one's probability"),
    ("seed", int, "N", "the same seed gives the same answers"),
)
VISIBLE = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
HELP = """\
/regen         another answer to the last question
/undo          forget the last question and its answer
/clear         forget everything but the system message
/system TEXT   set the system message (without TEXT: remove it) and forget everything else
/stats         tokens and times of the last answer
/quit          leave (as do Ctrl-D, and Ctrl-C twice)
A line that ends with \\ goes on in the next one. A question that begins with / begins with //.
Ctrl-C stops an answer; the text so far is kept."""


def add_command(commands: Any) -> None:
    """`commands` is argparse's sub-parser action, which has no public type."""
    parser = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Talk to a model file, which is loaded into this process, or with --url to a server that is running. "
        "With input from a file or a pipe: all of it is one question, and the answer goes to standard output.",
        allow_abbrev=False,
    )
    add_options(parser, SERVER_KEYS)
    parser.add_argument("--url", help="OpenAI-compatible server to talk to, such as http://127.0.0.1:8080")
    parser.add_argument("--api-key", metavar="KEY", help="for a server that asks for one")
    parser.add_argument("--system", metavar="TEXT", default="", help="system message")
    for name, kind, metavar, text in SETTINGS:
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=f"{text} (default: the server's)")
    parser.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    with _server(namespace) as (url, key), asyncio.Runner() as runner:
        from svc.cli.client import ChatClient

        given = {name.replace("-", "_"): getattr(namespace, name.replace("-", "_")) for name, *_ in SETTINGS}
        settings = {name: value for name, value in given.items() if value is not None}
        client = ChatClient(url, key, getattr(namespace, "model_name", None) if namespace.url else None)
        runner.run(client.__aenter__())
        try:
            chat = Chat(client, runner, Conversation(namespace.system), settings)
            if sys.stdin.isatty():
                chat.talk()
            else:
                chat.answer_once(sys.stdin.read())
        finally:
            runner.run(client.__aexit__(None, None, None))
    return 0


@contextlib.contextmanager
def _server(namespace: argparse.Namespace) -> Iterator[tuple[str, str | None]]:
    """(URL, API key) of the server given by --url, or of a new one for the model file."""
    if namespace.url is not None:
        if hasattr(namespace, "model"):
            raise ConfigError("either a MODEL or --url can be given, not both")
        if not namespace.url.startswith(("http://", "https://")):
            raise ConfigError(f"--url must begin with http:// or https://, not {namespace.url!r}")
        yield namespace.url, namespace.api_key
        return
    config = load(namespace)
    from svc.cli.local_server import LocalServer

    with LocalServer(config) as (url, key):
        yield url, key


class Chat:
    """One conversation with one server, on standard input and output."""

    def __init__(self, client: "ChatClient", runner: asyncio.Runner, conversation: Conversation, settings: dict[str, Any]) -> None:
        self._client = client
        self._runner = runner
        self._conversation = conversation
        self._settings = settings
        self._last: Reply | None = None

    def answer_once(self, question: str) -> None:
        """Asks one question and prints the answer. HeadraceError or KeyboardInterrupt if that fails."""
        if not question.strip():
            raise ConfigError("no question came on standard input")
        self._conversation.ask(question.rstrip("\n"))
        self._stream()

    def talk(self) -> None:
        """Reads questions and commands until the user leaves."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - input() then edits lines and remembers them
        print(f"Talking to {self._runner.run(self._client.connect())}. /help lists the commands.")
        interrupted = False
        while True:
            try:
                line = self._read()
                interrupted = False
                if line.strip() and not self._do(line):
                    return
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                if interrupted:
                    print()
                    return
                interrupted = True
                print("\n(Ctrl-C once more leaves)")

    def _read(self) -> str:
        """One line, and further ones after a backslash at its end."""
        line = input("> ")
        while line.endswith("\\"):
            line = line[:-1] + "\n" + input(". ")
        return line

    def _do(self, line: str) -> bool:
        """Obeys a command or asks a question; False: leave."""
        if not line.startswith("/") or line.startswith("//"):
            self._conversation.ask(line.removeprefix("/") if line.startswith("//") else line)
            self._answer()
            return True
        word, _, rest = line.partition(" ")
        match word:
            case "/quit" | "/exit":
                return False
            case "/help":
                print(HELP)
            case "/clear":
                self._conversation.clear()
                print("(forgotten)")
            case "/system":
                self._conversation = Conversation(rest.strip())
                print("(system message set)" if rest.strip() else "(no system message)")
            case "/undo":
                print(f"({len(self._conversation)} turns left)" if self._conversation.undo() else "(there is nothing to undo)")
            case "/regen":
                if self._conversation.reopen():
                    self._answer()
                else:
                    print("(there is no answer yet)")
            case "/stats":
                print(describe(self._last))
            case _:
                print(f"(no such command: {word}; /help lists them)")
        return True

    def _answer(self) -> None:
        """Streams an answer. An error is printed and does not end the conversation."""
        try:
            self._stream()
        except HeadraceError as error:
            print(f"headrace: {error}", file=sys.stderr)

    def _stream(self) -> None:
        """Answers the open question. Also after an error or Ctrl-C, the conversation keeps the text so far."""
        from svc.cli.client import Reply

        self._last = reply = Reply()
        try:
            self._runner.run(self._client.ask(self._conversation.messages, self._settings, reply, _show))
        finally:
            self._conversation.answer(reply.text)
            if reply.text and not reply.text.endswith("\n"):
                print(flush=True)


def _show(text: str) -> None:
    """Prints text with its control characters replaced: a model must not steer the terminal."""
    sys.stdout.write(text.translate(VISIBLE) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def describe(reply: "Reply | None") -> str:
    """Tokens and times of an answer, in one line."""
    if reply is None:
        return "(nothing was asked yet)"
    facts = []
    if reply.prompt_tokens is not None:
        cached = "" if reply.cached_tokens is None else f", {reply.cached_tokens} of them cached"
        facts.append(f"{reply.prompt_tokens} prompt tokens{cached}")
    if reply.first_s is not None:
        facts.append(f"first text after {reply.first_s:.2f} s")
    if reply.completion_tokens is not None:
        speed = "" if reply.tokens_per_s is None else f" at {reply.tokens_per_s:.1f} a second"
        facts.append(f"{reply.completion_tokens} tokens{speed}")
    if reply.finish_reason != "stop":
        facts.append("stopped at the token limit" if reply.finish_reason == "length" else reply.finish_reason or "cut off")
    return f"({'; '.join(facts)})"
