"""The one exit of texts: no password, no command to a terminal, and healthy lines as they are."""

import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envbuilder.core.console import Console, log_to, setup
from envbuilder.core.errors import CommandError, UsageError
from envbuilder.core.plain import columns, one_line
from envbuilder.core.process import Command, ProcessRunner
from envbuilder.core.text.redact import know_secrets, plain, plain_json, redacted, without_credentials

SECRET = "s3cr3tPW99"
LEAKS = [
    f"https://user:{SECRET}@host/simple/", f"https://{SECRET}@host/x", f"git+https://user:{SECRET}@host/x.git@main",
    f"https://user:a@{SECRET}@host/x", f"https://user:a/{SECRET}@host/x", f"ssh://git:{SECRET}@host/x", f"http://:{SECRET}@host:80",
    f"postgresql+asyncpg://user:{SECRET}@host/x", f"--index-url https://user:{SECRET}@host/simple",
    f"curl --password {SECRET} x", f"--token={SECRET}", f"--api-key '{SECRET} {SECRET}'", f"HF_TOKEN={SECRET}",
    f"env AWS_SECRET_ACCESS_KEY={SECRET} x", f'PGPASSWORD="{SECRET}"', f"password={SECRET}", f"Authorization: Basic {SECRET}",
    f"-H 'Authorization: Bearer {SECRET}'", f"Proxy-Authorization: {SECRET}", f"Private-Token: {SECRET}", f"X-Auth-Token: {SECRET}",
    f"Cookie: session={SECRET}", f"bearer {SECRET}", f'{{"password": "{SECRET}"}}', f"https://host/x?access_token={SECRET}&page=2",
    f"https://host/x?X-Amz-Signature={SECRET}", f"machine host login me password {SECRET}", f"ghp_{SECRET}{SECRET}",
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n-----END OPENSSH PRIVATE KEY-----",
    f"https://user:\x1b[8m{SECRET}@host", f"ht\u200btps://user:{SECRET}@host",
]  # fmt: skip
TOKENS = [
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "github_pat_11ABCDEFG0abcdefghij_klmnop", "glpat-abcdefghij0123456789",
    "hf_abcdefghijABCDEFGHIJklmnopqrst", "AKIAIOSFODNN7EXAMPLE", "sk-proj-abcdefgh01234567", "xoxb-1234567890-abcdefghij",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0abc.dozjgNryP4J3jVmN",
]  # fmt: skip
HEALTHY = [
    "git@github.com:owner/project.git", "git clone git@host:~me/x", "me@example.org", "torch@2.6", "a100@torch2.6.0",
    "ssh://git@host/x", "ssh://me@engine", "rsync://me@host/x", "https://github.com/o/r.git@v1", "git+https://github.com/o/r@main",
    "docker://ubuntu:22.04@sha256:0123", "host:5000/x@sha256:0123", "http://host:8080/x@1", "http://[::1]:80/x@1",
    "see https://host:8080 or me@host", "TOKENIZERS_PARALLELISM=false", "pad_token=<pad> max_tokens=100", "SSH_AUTH_SOCK=/run/x",
    "error: unexpected token: `foo`", "password: wrong", "--password-stdin", 'A_TOKEN="$A_TOKEN" x --password "$PW"', 'Bearer realm="https://host/token"',
    "nvcc -gencode arch=compute_80,code=sm_80", "  hint: `envbuilder build a100`", "tab\there", "grün ✓ → … 漢字 🦊",
    "hf_hub_download(repo_id='x')", "sk-learn-contrib", "sha256:" + "0123456789abcdef" * 4, "--key=cosign.key", "C:\\x", "a\n\nb",
]  # fmt: skip
COMMANDS = {
    "\x1b[31mred\x1b[0m": "red", "\x1b]0;title\x07x": "x", "\x1b]8;;https://evil\x1b\\link\x1b]8;;\x1b\\": "link", "\x9b2Jx": "x",
    "\x9d0;title\x9cx": "x", "\x1bPq#0\x1b\\x": "x", "\x1bcx": "x", "a\rb": "ab", "a\bb\x07\x00\x7f": "ab", "\u202egnp.x": "gnp.x",
    "a\u2066b\u2069\u200b\u200f\ufeff": "ab", "\x1b]52;c;aGk=\x07x": "x", "\x1b]never closed": "never closed", "a\u2028b\x85c": "abc",
    "\x1b[\x1b[31mx": "x", "\udcff": "\\udcff", "\U000e0041x": "x",
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_known_secrets():
    yield
    know_secrets({})


@pytest.mark.parametrize("text", LEAKS)
def test_a_password_is_not_shown(text: str):
    assert SECRET not in plain(text)
    assert "***" in plain(text)
    assert plain(plain(text)) == plain(text)


@pytest.mark.parametrize("token", TOKENS)
def test_a_token_is_known_by_its_shape(token: str):
    assert plain(f"got `{token}`, expected another") == "got `***`, expected another"


@pytest.mark.parametrize("text", HEALTHY)
def test_a_healthy_line_is_shown_as_it_is(text: str):
    assert plain(text) == text


@pytest.mark.parametrize("text", COMMANDS)
def test_a_command_to_the_terminal_is_removed(text: str):
    assert plain(text) == COMMANDS[text]
    assert json.loads(plain_json(json.dumps(text, ensure_ascii=False))) == text
    assert plain_json(json.dumps(text, ensure_ascii=False)).isprintable()


def test_the_value_of_a_secret_setting_is_not_shown_wherever_it_stands():
    know_secrets(
        {
            "WANDB_API_KEY": "0a1b2c3d4e",
            "http_proxy": f"http://me:{SECRET}@proxy",
            "A_TOKEN": "true",
            "B_TOKEN": "/run/x",
        }
    )
    assert (
        plain(f"login 0a1b2c3d4e failed; {SECRET} is wrong; true, /run/x")
        == "login *** failed; *** is wrong; true, /run/x"
    )


@pytest.mark.parametrize(
    "unit",
    ["\x1b]", "\x1b[0", "\x1bP", "://a:", "http://a:b", "http://", "@", "--password '", "--token ", "TOKEN", "bearer ", "cookie:",
     "authorization: ", "-----BEGIN A PRIVATE KEY-----a", "eyJaaaaaaaa.", "machine a login ", "?token", "x-a-", '"token":"', "a_", "\u202e"],
)  # fmt: skip
def test_the_time_grows_with_the_text_alone(unit: str):
    def seconds(size: int) -> float:
        text = (unit * size)[:size]
        start = time.process_time()
        plain(text)
        return time.process_time() - start

    seconds(1000)
    # Of a time that grows with the square, it would be 64 times as much.
    assert min(seconds(400_000) for _ in range(3)) < 24 * max(0.004, min(seconds(50_000) for _ in range(3)))


@pytest.mark.programs
def test_neither_error_nor_log_nor_terminal_shows_what_a_program_and_its_line_tell(tmp_path, capsys):
    logger = logging.getLogger("envbuilder")
    before = logger.level, list(logger.handlers)
    setup(2)
    script = f"printf 'fatal: \\033]0;owned\\007 https://me:{SECRET}@host \\302\\2332J\\n' >&2; exit 3"
    command = Command(
        argv=("sh", "-c", script, f"https://me:{SECRET}@host"), why="fetch it", env=(("X_TOKEN", SECRET),)
    )
    try:
        with pytest.raises(CommandError) as caught, log_to(tmp_path / "log"):
            ProcessRunner({"PATH": "/usr/bin:/bin"}).run(command)
    finally:
        logger.setLevel(before[0])
        logger.handlers = before[1]
    shown = (
        capsys.readouterr().err + (tmp_path / "log").read_text() + caught.value.message + caught.value.hint
    )
    assert SECRET not in shown
    assert shown.count("https://***@host") >= 5
    written = capsys.readouterr().err + (tmp_path / "log").read_text()
    assert not [sign for sign in written if not (sign.isprintable() or sign == "\n")]


@pytest.mark.parametrize("folds", ["", "github", "gitlab"])
def test_progress_shows_no_password_and_no_command(capsys, folds: str):
    console = Console(folds=folds)
    hostile = f"x\x1b]0;owned\x07\u202e https://me:{SECRET}@host"
    with console.group(f"{hostile}\n::add-mask::x"), console.named(hostile).step(hostile) as step:
        step.show_note(hostile)
        console.say(hostile)
    err = capsys.readouterr().err
    assert SECRET not in err
    assert "\x1b]" not in err
    assert "\u202e" not in err
    assert "\n::add-mask" not in err


def test_a_password_is_not_cut_into_two_lines_of_a_table():
    table = columns([("a", f"https://me:{SECRET}@host/simple/" * 2)], 24)
    assert SECRET[:4] not in table
    assert SECRET[-4:] not in table.replace("\n", "")


@pytest.mark.parametrize("sign", ["\n", "\r", "\t", "\x00", "\x1b", "\x7f", "\x85", "\x9b"])
def test_a_text_of_a_script_is_one_line(sign: str):
    with pytest.raises(UsageError, match="control characters") as caught:
        one_line(f"a{sign}touch b")
    assert sign not in caught.value.message


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://me:PW@host/x.git", "https://host/x.git"), ("https://TOKEN@host/x", "https://host/x"),
        ("ssh://git:PW@host/x", "ssh://git@host/x"), ("ssh://git@host/x", "ssh://git@host/x"),
        ("git+https://me:P@W@host/x@main", "git+https://host/x@main"),
    ],
)  # fmt: skip
def test_an_address_without_its_password_still_leads_there(url: str, expected: str):
    assert without_credentials(url) == expected


@pytest.mark.programs
def test_the_traceback_of_a_bug_is_shown_without_a_password(tmp_path: Path):
    code = (
        "import sys; from envbuilder import cli; from envbuilder.commands import show\n"
        f"def fail(*_): raise RuntimeError('https://me:{SECRET}@host \\x1b]0;owned\\x07')\n"
        "cli.load_command = fail; sys.argv[1:] = ['show', 'x']; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: https://***@host" in done.stderr
    assert SECRET not in done.stderr
    assert "\x1b" not in done.stderr


def test_text_and_json_are_redacted_alike():
    assert redacted(f"x {LEAKS[0]}") == "x https://***@host/simple/"


def test_columns_are_aligned_and_whole_where_no_terminal_is():
    assert columns([("a", "bb", "c"), ("aaa", "b", "")], 0) == "a    bb  c\naaa  b"
    assert columns([("a", "word " * 60)], 0) == f"a  {'word ' * 60}".rstrip()
    assert columns([], 80) == ""


@pytest.mark.parametrize("width", [40, 80, 200])
def test_at_a_terminal_no_line_is_wider_and_nothing_is_lost(width):
    rows = [("name", "torch 2.6.0", "words " * 30), ("a[b]", ":fire:", "x" * 70)]
    table = columns(rows, width)
    assert max(map(len, table.splitlines())) <= width
    said = re.sub(r"\s", "", table)
    assert (said.count("words"), said.count("x"), said.count(":fire:"), said.count("a[b]")) == (30, 70, 1, 1)
