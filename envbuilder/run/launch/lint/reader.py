"""Read an sbatch script for `launch lint`: its commands as they run, and the jobs that it submits.

What a script sources stands in the place of `source`, and the body of a function where it is called.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from envbuilder.run.launch.lint.batch_script import OVER_NODES, QUOTED, Line, Script

_HERE: Final = re.compile(r"(?<!<)<<-?(?!<)\s*[\"'\\]?([A-Za-z_]\w*)")
_SHELL_READS: Final = re.compile(
    r"(?:^|[\s;&|(])(?:bash|sh|zsh|srun|ssh|sbatch)\s[^<>]*<<|(?:^|[\s;&|(])(?:bash|sh|zsh|sbatch)<<"
)
_SUBMITS: Final = re.compile(r"(?:^|[\s;&|(])sbatch\b[^<]*<<")
_WRAP: Final = re.compile(r"""--wrap[=\s]\s*("(?:\\.|[^"\\])*"|'[^']*'|\S+)""")
_FUNCTION: Final = re.compile(
    r"^(\s*)(?:function\s+([\w:-]+)\s*(?:\(\s*\))?|([A-Za-z_][\w:-]*)\s*\(\s*\))\s*[{(]?(.*)$"
)
_BEFORE_CALL: Final = (
    r"(?:^|[;&|({`]|\$\(|\b(?:do|then|else|if|elif|while|until|time|exec|eval)\s|!\s|\btrap\s+[\"']?)\s*"
    r"(?:[A-Za-z_]\w*=\S*\s+)*"
)
_WORD: Final = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^\s"'])+""")
_ARGUMENTS: Final = r"""["']?\$(?:\{[@*]\}|[@*])["']?"""
_RUN: Final = r"\$\([^()]*(?:\([^()]*\)[^()]*)*\)"
_SOURCE: Final = re.compile(
    r"""(?:^|[;&|({"']|\b(?:then|do|else)\s)\s*(?:source|\.)\s+"""
    rf"""("(?:{_RUN}|[^"$]|\$(?!\())+"|'[^']+'|(?:{_RUN}|[^\s;&|)"'$]|\$(?!\())+)"""
)
# Files that set up programs and start nothing.
_SETS_UP: Final = re.compile(
    r"(?:^|/)(?:activate\w*|conda|mamba|micromamba|modules?|lmod|setvars|setup-env|env_modules)(?:\.sh)?$"
    r"|(?:^|/)(?:\.?bashrc|\.bash_profile|\.?profile|\.bash_aliases|profile\.sh)$|^/etc/|/init/(?:ba)?sh$"
)
# The folder of the file itself, and the folder where a job was submitted.
_BESIDE: Final = re.compile(
    r"""\$\((?:cd\s+"?\$\()?dirname\s+(?:--\s+)?"?\$\{?(?:0|BASH_SOURCE(?:\[0\])?)\}?"?\)(?:"?\s*&&\s*pwd(?:\s+-P)?\s*\))?"""
    r"|\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}"
)
_OWN_FOLDER: Final = re.compile(
    rf"""\s*(?:export\s+|local\s+|readonly\s+)?(\w+)="?({_BESIDE.pattern})"?\s*$"""
)
_SUBMITTED: Final = re.compile(r"\$\{?(?:SLURM_SUBMIT_DIR|PWD)\}?|\$\(pwd\)")
_FOLDER: Final = re.compile(r"[./]|\$\((?:pwd|dirname|cd)\b|\$\{?(?:SLURM_SUBMIT_DIR|PWD|0|BASH_SOURCE)\b")
_OPEN_VALUE: Final = re.compile(r"\s*(?:export\s+|local\s+|readonly\s+)?\w+\+?=")
_PART_OF_COMMAND: Final = r"-|\S*(?:python|torchrun|srun|accelerate|deepspeed|apptainer|singularity)\b"
_LONGEST: Final = 500  # lines of a quoted text
_ARRAY: Final = re.compile(r"\s*(?:declare -a\s+|local\s+|export\s+)?\w+\+?=\(")
_ASSIGNED: Final = re.compile(
    r"""\s*(?:export\s+|local\s+|declare\s+-\w+\s+|readonly\s+)?(\w+)\+?=(?:\(([^)]*)\)|"([^"]*)"|'([^']*)'|(\S+))\s*;?\s*$"""
)
_NAME: Final = r"\$(?:\{(\w+)(?:\[[@*]\])?\}|(\w+))"
_USED: Final = re.compile(rf'"{_NAME}"|{_NAME}')


def read_jobs(path: Path, text: str, read: Callable[[Path], str | None]) -> tuple[Script, ...]:
    """Return a script, and after it each job that it submits with `sbatch --wrap` or `sbatch <<EOF`.

    `read` returns the text of a file that the script sources, or None where there is none.
    """
    reader = _Reader(path=path, read=read)
    lines = tuple(reader.lines(text))
    unknown = (*reader.unknown, *reader.elsewhere(lines))
    jobs = [Script(path=path, lines=lines, unknown=unknown, has_jobs=bool(reader.jobs))]
    return (*jobs, *(Script(path=path, lines=lines, unknown=unknown) for lines in reader.jobs))


@dataclass(kw_only=True)
class _Reader:
    """Reads the commands of one script and of the files that it sources, in the order in which they run."""

    path: Path
    read: Callable[[Path], str | None]
    values: dict[str, str] = field(default_factory=dict)
    functions: dict[str, list[Line]] = field(default_factory=dict)
    calls: set[tuple[str, str]] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    running: list[object] = field(default_factory=list)  # functions and files that are being read
    unknown: list[Line] = field(default_factory=list)
    jobs: list[tuple[Line, ...]] = field(default_factory=list)

    def lines(self, text: str, file: Path | None = None) -> Iterator[Line]:
        """Return the commands and options of a text, with arrays and commands that it set above in their places.

        A text that goes into a file (`cat > run.py <<EOF`) is no command. What a shell reads (`bash <<EOF`) is.
        """
        return self._expanded(replace(line, file=file) for line in _whole_lines(text))

    def elsewhere(self, lines: Iterable[Line]) -> Iterator[Line]:
        """Return the lines that name a function in another way than a call."""
        for name in self.functions:
            if name in self.exported | {called for called, _ in self.calls}:
                continue
            named = re.compile(rf"\s{re.escape(name)}(?=\s|$)")
            if line := next((command for command in lines if named.search(command.text)), None):
                yield replace(line, text=f"the function `{name}` is started in a way that cannot be followed")

    def _expanded(self, lines: Iterable[Line]) -> Iterator[Line]:
        lines = iter(lines)
        while line := next(lines, None):
            if begun := _FUNCTION.match(line.text):
                if body := self._define(begun, line, lines):  # the end of the text is reached
                    lines = iter(body)
            elif self._assign(line.text):
                continue  # an array is a part of the command that uses it
            else:
                text = _USED.sub(
                    lambda used: self.values.get(next(filter(None, used.groups())), used[0]), line.text
                )
                yield from self._command(replace(line, text=text))

    def _define(self, begun: re.Match[str], line: Line, lines: Iterator[Line]) -> list[Line]:
        """Keep the body of a function, which ends at a brace as far to the left as its first line.

        Without such a brace nothing is kept, and its lines are returned as commands.
        """
        indent, name, rest = begun[1], begun[2] or begun[3], begun[4]
        if short := re.match(r"(.*\S)\s*[})]\s*;?\s*(?:#.*)?$", rest):
            self.functions[name] = [replace(line, text=short[1].rstrip(" ;"))]
            return []
        body = [replace(line, text=rest)] if rest.strip("{( ") else []
        for following in lines:
            end = re.match(r"(\s*)[})]", following.text)
            if end and len(end[1]) <= len(indent):
                self.functions[name] = body
                return []
            body.append(following)
        return body

    def _assign(self, text: str) -> bool:
        """Keep a value that commands use, and return whether the line is nothing but a part of them."""
        if beside := _OWN_FOLDER.match(text):
            self.values[beside[1]] = beside[2]
        assigned = _ASSIGNED.match(text)
        if assigned is None:
            return False
        name, array, *_ = assigned.groups()
        value = (array or assigned[3] or assigned[4] or assigned[5] or "").strip()
        if assigned[4]:
            value = value.replace("$", "\\$")  # no shell expands what another one had in single quotes
        if array is not None and name in self.values and "+=" in text:
            self.values[name] += f" {value}"
            return True
        is_command = re.match(_PART_OF_COMMAND, value) is not None
        if is_command or _FOLDER.match(value):
            self.values[name] = value
        return is_command and array is not None

    def _command(self, line: Line) -> Iterator[Line]:
        if call := re.match(r"\s*export\s+-f\s+(.+)", line.text):
            self.exported.update(call[1].split())
        # Each task runs an exported function, and expands what is in it.
        for name in sorted(self.exported & self.functions.keys()):
            if not re.search(rf"{OVER_NODES}|\bsh\s+-\w*c\s|\bxargs\s", line.text):
                continue
            body = "; ".join(command.text.strip() for command in self.functions[name]).replace("$", "\\$")
            named = rf"(?<![\w./$-]){re.escape(name)}(?![\w./=-])"
            line = replace(line, text=_replaced(named, body, line.text))
        for sourced in _SOURCE.finditer(line.text):
            yield from self._sourced(line, sourced[1].strip("\"'"))
        if line.here or "--wrap" in line.text:
            line = self._submitted(line)
        called = [call for name in self.functions for call in [_call(name, line.text)] if call]
        for call in called:
            yield from self._called(line, call)
        if not any(_is_whole(call, line.text) for call in called):
            yield line

    def _called(self, line: Line, call: re.Match[str]) -> Iterator[Line]:
        name, given = call[1], call[2].strip()
        if name in self.running or (name, given) in self.calls:
            return
        self.calls.add((name, given))
        self.running.append(name)
        words = _WORD.findall(given)
        body = []
        for inner in self.functions[name]:
            if re.match(r"\s*shift\s*$", inner.text) and words and not re.search(_ARGUMENTS, words[0]):
                words = words[1:]
            text = _replaced(_ARGUMENTS, " ".join(words), inner.text)
            for number, word in enumerate(words[:9], 1):
                text = _replaced(rf"[\"']?\$(?:{number}(?!\d)|\{{{number}\}})[\"']?", word, text)
            body.append(replace(line if re.search(_ARGUMENTS, inner.text) else inner, text=text))
        yield from self._expanded(body)
        self.running.remove(name)

    def _sourced(self, line: Line, word: str) -> Iterator[Line]:
        """Return the commands of a file that the script sources; a file that cannot be read is unknown."""
        if _SETS_UP.search(word):
            return
        beside = line.file or self.path
        place = _BESIDE.sub(lambda _: str(beside.parent), word)
        place = _SUBMITTED.sub(lambda _: str(self.path.parent), place)
        for path in () if re.search(r"[$`~*?]", place) else (self.path.parent / place, Path(place)):
            if path in self.running:
                return
            if (text := self.read(path)) is not None:
                self.running.append(path)
                yield from (command for command in self.lines(text, path) if not command.text.startswith("#"))
                self.running.remove(path)
                return
        self.unknown.append(replace(line, text=f"`{word}` is sourced and cannot be read from here"))

    def _submitted(self, line: Line) -> Line:
        """Keep the job that a command submits, and return the command without it."""
        wrap = _WRAP.search(line.text)
        begun = re.search(r"\bsbatch\b", line.text)
        if begun is None or not (wrap or line.here):
            return line
        inner = wrap[1] if wrap else line.here
        if wrap and inner[:1] in "\"'":
            inner = inner[1:-1]
        if not (wrap and wrap[1].startswith("'")):
            inner = re.sub(r"\\([$\"\\`])", r"\1", inner)
        rest = line.text.replace(wrap[0], " ") if wrap else line.text.partition("<<")[0]
        options = replace(line, text=f"#SBATCH {rest[begun.end() :]}", here="")
        reader = _Reader(path=self.path, read=self.read)
        lines = [
            replace(command, file=line.file, number=line.number + command.number * (not wrap))
            for command in reader.lines(inner)
        ]
        self.jobs.append((options, *lines))
        self.unknown += reader.unknown
        return replace(line, text=rest, here="")


def _replaced(pattern: str, by: str, text: str) -> str:
    return re.sub(pattern, lambda _: by, text)


def _call(name: str, text: str) -> re.Match[str] | None:
    """Return where a command calls a function: its name and its arguments."""
    if name not in text:
        return None
    return re.search(rf"{_BEFORE_CALL}({re.escape(name)})(?![\w./=(-])((?:[^;&|)\n]|(?<=>)&|&(?=>))*)", text)


def _is_whole(call: re.Match[str], text: str) -> bool:
    return not text[: call.start(1)].strip() and not text[call.end() :].strip(" ;&")


def _whole_lines(text: str) -> Iterator[Line]:
    """Return the lines of a script, each with its continuations, without comments and the contents of files."""
    raws = text.split("\n")
    number = 0
    while number < len(raws):
        begun, whole, in_array = number, "", False
        while number < len(raws):
            raw, number = raws[number], number + 1
            is_comment = raw.lstrip().startswith("#")
            in_array = (in_array or (not whole and _ARRAY.match(raw) is not None)) and ")" not in raw
            if in_array:
                whole += re.sub(r"(?:^|\s)#.*", "", raw).rstrip("\r") + " "
            elif raw.rstrip("\r").endswith("\\") and not is_comment:
                whole += raw.rstrip("\r")[:-1] + " "
            else:
                whole += raw
                break
        if not whole.strip() or (whole.lstrip().startswith("#") and not whole.startswith("#SBATCH")):
            continue
        if whole.startswith("#"):
            yield Line(number=begun + 1, text=whole)
            continue
        whole, number = _quoted_to_end(whole, raws, number)
        here = ""
        begin = _HERE.search(whole)
        is_shift = begin is not None and re.search(r"\(\([^()]*$", whole[: begin.start()])  # of a number
        if begin and not is_shift and (_SUBMITS.search(whole) or not _SHELL_READS.search(whole)):
            ends = (at for at in range(number, len(raws)) if raws[at].strip() == begin[1])
            end = next(ends, len(raws))
            here = "\n".join(raws[number:end]) if _SUBMITS.search(whole) else ""
            number = end + 1
        yield Line(number=begun + 1, text=whole, here=here)


def _quoted_to_end(whole: str, raws: list[str], number: int) -> tuple[str, int]:
    """Add the lines up to the end of a quoted text, and return the number of the next line. Without an end, add none."""
    if not _is_quote_open(whole):
        return whole, number
    glue = " " if _OPEN_VALUE.match(whole) else " ; "
    longer = whole
    for at in range(number, min(number + _LONGEST, len(raws))):
        raw = raws[at].rstrip("\r")
        longer += raw[:-1] + " " if raw.endswith("\\") else raw
        if not _is_quote_open(longer) and not raw.endswith("\\"):
            return longer, at + 1
        longer += "" if raw.endswith("\\") else glue
    return whole, number


def _is_quote_open(text: str) -> bool:
    return re.search(r"[\"']", re.sub(r"(?:^|\s)#.*", "", QUOTED.sub("", text))) is not None
