"""`headrace chat`: sessions with a real server around a tiny model, in this process, typed and piped."""

import builtins
import io
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from svc.cli import chat, main
from svc.cli.conversation import Conversation
from svc.cli.local_server import LocalServer
from svc.config import Config

MODEL = str(Path(__file__).parent.parent / "data" / "gguf" / "tiny-qwen35moe-Q4_K_M.gguf")
GREEDY = ["--temperature", "0", "--max-tokens", "12"]
BUDGETS = ["--kv-bytes", "8MiB", "--snapshot-bytes", "32MiB", "--threads", "2"]


@pytest.fixture(scope="module")
def server() -> Iterator[list[str]]:
    """Flags that lead to a running server."""
    with LocalServer(Config(model=MODEL, kv_bytes=2**23, snapshot_bytes=2**25, threads=2)) as (url, key):
        yield ["--url", url, "--api-key", key]


@pytest.fixture
def typed(
    server: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., list[str]]]:
    """`typed(lines)`: a session at a terminal -> what each line had printed before the next one was read; stderr is shown last."""

    # A process started in the background of a shell inherits that it ignores Ctrl-C; at a terminal it does not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def session(lines: list[str | type[BaseException]], *flags: str) -> list[str]:
        printed: list[str] = []
        complaints = ""
        waiting = iter(lines)

        def type_line(prompt: str = "") -> str:
            nonlocal complaints
            captured = capsys.readouterr()
            printed.append(captured.out)
            complaints += captured.err
            line = next(waiting, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", type_line)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        assert main(["chat", *server, *(flags or GREEDY)]) == 0
        captured = capsys.readouterr()
        return [*printed[1:], captured.out, complaints + captured.err]

    yield session
    signal.signal(signal.SIGINT, before)


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_piped_question(server: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All of standard input is one question; only the answer is on standard output. A model file answers as its server does."""
    answers = []
    for way in ([MODEL, *BUDGETS], server):
        piped(monkeypatch, "Say\nsomething.\n")
        assert main(["chat", *way, *GREEDY]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        answers.append(captured.out)
    assert answers[0] == answers[1]
    assert answers[0].strip()


def test_session(typed: Callable[..., list[str]]) -> None:
    """History is kept: another answer costs nothing to prepare, undo and clear bring earlier states back word for word."""
    first, again, stats, second, undone, once_more, cleared, fresh, *_ = typed(
        ["Hello", "/regen", "/stats", "And then?", "/undo", "And then?", "/clear", "Hello"]
    )
    assert first == again == fresh
    assert first != second
    prompt, cached = re.findall(r"\d+", stats)[:2]
    assert int(prompt) == int(cached) > 0
    assert "12 tokens at" in stats
    assert "token limit" in stats
    assert undone == "(1 turns left)\n"
    assert once_more == second
    assert cleared == "(forgotten)\n"


def test_system_message(typed: Callable[..., list[str]]) -> None:
    """Set by flag or by command it is the same conversation; without it another one."""
    (with_flag, *_) = typed(["Hello"], *GREEDY, "--system", "Be odd.")
    without, _, with_command, _, removed, *_ = typed(["Hello", "/system Be odd.", "Hello", "/system", "Hello"])
    assert with_command == with_flag
    assert removed == without != with_flag


def test_small_words(typed: Callable[..., list[str]]) -> None:
    """Commands with nothing to work on say so; unknown ones are not sent to the model; an empty line is nothing."""
    *replies, last, err = typed(["/undo", "/regen", "/stats", "/frobnicate", "", "/help", "/quit"])
    assert [reply.count("\n") for reply in replies] == [1, 1, 1, 1, 0, chat.HELP.count("\n") + 1]
    assert "/frobnicate" in replies[3]
    assert (last, err) == ("", "")


def test_lines_that_go_on(typed: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A backslash joins lines; a doubled slash begins a question with one."""
    asked: list[str] = []
    ask = Conversation.ask

    def note(self: Conversation, question: str) -> None:
        asked.append(question)
        ask(self, question)

    monkeypatch.setattr(Conversation, "ask", note)
    typed(["one\\", "two", "//etc"])
    assert asked == ["one\ntwo", "/etc"]


def test_interrupted_answer(typed: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C stops an answer, keeps what is there and frees the slot; the conversation goes on. Twice in a row leaves."""
    show = chat._show
    interrupting = True

    def show_and_interrupt(text: str) -> None:
        show(text)
        if interrupting:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(chat, "_show", show_and_interrupt)
    cut_off, stats, *_ = typed(["Hello", "/stats"], "--temperature", "0", "--max-tokens", "400")
    assert "Ctrl-C once more leaves" in cut_off
    assert "cut off" in stats
    interrupting = False
    whole, *_ = typed(["Hello"], "--temperature", "0", "--max-tokens", "400")
    assert len(whole) > len(cut_off)
    assert whole.startswith(cut_off.split("\n(Ctrl-C")[0].rstrip("\n"))


def test_ctrl_c_at_the_prompt(typed: Callable[..., list[str]]) -> None:
    """Once is a slip, unless nothing was typed since; then it means leaving."""
    *_, last, err = typed([KeyboardInterrupt, "/stats", KeyboardInterrupt, KeyboardInterrupt, "never read"])
    assert last == "\n"
    assert err == ""


def test_refusal_does_not_end_a_session(typed: Callable[..., list[str]]) -> None:
    """What the server refuses is said in one sentence, and that question is forgotten."""
    refused, undone, answered, _, err = typed(["word " * 5000, "/undo", "Hello"])
    assert refused == ""
    assert undone == "(there is nothing to undo)\n"
    assert answered.strip()
    assert "maximum context length" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "culprit"),
    [
        (["--url", "127.0.0.1:1"], "--url"),
        (["m.gguf", "--url", "http://127.0.0.1:1"], "not both"),
        (["/no/such/model.gguf"], "/no/such/model.gguf"),
    ],
)
def test_mistakes(flags: list[str], culprit: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence that names what was wrong, before anything is asked."""
    monkeypatch.delenv("HEADRACE_MODEL", raising=False)
    piped(monkeypatch, "Hello")
    assert main(["chat", *flags]) == 2
    captured = capsys.readouterr()
    assert culprit in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        piped(monkeypatch, "Hello")
        assert main(["chat", "--url", url]) == 2
    assert f"cannot reach {url}" in capsys.readouterr().err


def test_wrong_key(server: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The server around a model file lets nobody else in."""
    for flags in (server[:2], [*server[:2], "--api-key", "guess"]):
        piped(monkeypatch, "Hello")
        assert main(["chat", *flags]) == 2
        assert "API key" in capsys.readouterr().err


def test_empty_question(server: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    piped(monkeypatch, " \n")
    assert main(["chat", *server]) == 2
    assert "no question" in capsys.readouterr().err


def test_answers_do_not_steer_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and other controls are shown as such on a terminal; a file gets what the model wrote."""
    chat._show("a\x1b[2J\tb\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    chat._show("a\x1b[2J\tb\x9b\n")
    assert capsys.readouterr().out == "a\x1b[2J\tb\n" + "a\ufffd[2J\tb\ufffd\n"
