"""Read texts that people saved or pasted, all of one machine, as its facts.

Each text may hold several outputs, in any order, with prompts and prose around them. What cannot be read with certainty
goes into `Facts.damage` and nothing is concluded from it.

People paste matrices of `nvidia-smi topo` through terminals, chats, issue forms and formatters: tabs become blanks, headers
lose their indent, cells stick together, lines wrap, rows are cut. A matrix counts only when it proves itself: one row for
every GPU of the header in order, X on the diagonal and nowhere else, known words only, and the same word both ways.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from envbuilder.node.nccl.facts import Facts, Gpu, Interface, Nic, RdmaPort, merge
from envbuilder.node.nccl.probe import VENDORS
from envbuilder.node.pasted.listing import address, join, parse_listing

USING = re.compile(r"NCCL INFO (?:Bootstrap|NET/Socket) : Using (.+)$|NCCL INFO NET : Using interface (\S+)")
NAMED = re.compile(r"(?:\[\d+\])?([A-Za-z0-9_.@-]+):(\S+)<\d+>")
IB = re.compile(r"NCCL INFO NET/IB : Using (.+)$")
IB_PORT = re.compile(r"(?:\[\d+\])?([A-Za-z0-9_]+):(\d+)/(IB|RoCE|iWARP)")
NCCL_VERSION = re.compile(
    r"NCCL version (\d+\.\d+(?:\.\d+)?)|nvidia-nccl-cu\d+==(\d+\.\d+\.\d+)|Using NCCL (\d+\.\d+\.\d+)"
)
TORCH_VERSION = re.compile(r"(?:PyTorch version:\s*|\btorch==)(\d+\.\d+\.\d+)")
DRIVER = re.compile(
    r"(?:Driver Version:\s*|[Nn]vidia driver version:\s*|NVRM version:.*?Kernel Module\s+(?:for \S+\s+)?)(\d+\.\d+(?:\.\d+)?)"
)
GPU_NAME = re.compile(r"^\s*GPU (\d+): (.+?)(?: \(UUID:.*)?\s*$")
GPU_ROW = re.compile(
    r"^\|\s+(\d+)\s+((?:NVIDIA|Tesla|GeForce|Quadro|TITAN|GRID)\b[^|]*?)\s+(?:On|Off|N/A)\s+\|"
)
VENDOR = re.compile(r"^\s*(?:Vendor ID|vendor_id)\s*:\s*(\S+)", re.MULTILINE)
PCIE_ONLY = "the matrix leaves NVLink out, as `nvidia-smi topo -mp` does"
# Of matrices.
LINK = r"X|SYS|NODE|PHB|PXB|PIX|SOC|C2C|NV\d+|N/A"
STATUS = r"X|OK|CNS|GNS|TNS|DR|NS|U"
COLUMN = (
    r"GPU\d+|NIC\d+|NVMe\d+|mlx\d+_\w+?(?=mlx|NIC|\b)|(?:bnxt_re|irdma|hfi|qib|rocep|rxe|efa|ibp|roce)\w*"
)
OTHER_HEADING = r"CPU|NUMA|Affinity"
ESCAPES = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\u241b^]?\[(?:\d{1,2}(?:;\d{1,2})*)?m(?=\s|GPU|$)"
)
COMMENT = re.compile(r"^\s*(?://|#|>|\*|--|;)\s?(?=.*GPU\d|\s)")
LEGEND = re.compile(r"^\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|NV#|OK|CNS|GNS|TNS|NS|DR|U)\s*=\s")
NO_ROWS = "there is a header and no row"
COMMAND = re.compile(r"topo\s+(-\w+|--\w[\w-]*)(?:\s+([rwnap]+)\b)?")


@dataclass(frozen=True)
class PastedMatrix:
    """One block of text that has the head of a matrix; without `cells` where `damage` makes them uncertain."""

    kind: str  # "links" or "p2p"
    gpus: int | None  # of the header, or of the rows where they prove that none is missing
    cells: tuple[tuple[str, ...], ...] = ()
    pcie_only: bool = False  # NVLink is left out
    damage: str = ""
    nics: tuple[tuple[str, tuple[str, ...]], ...] = ()  # name, and the link to each GPU


def parse_pasted(texts: dict[str, str]) -> Facts:
    """Parse the facts of one machine; `texts` maps file names to texts."""
    facts = Facts()
    matrices: list[tuple[str, PastedMatrix]] = []
    for name, text in sorted(texts.items()):
        plain = clean(text)
        listing, traces = parse_listing(plain), _traces(plain)
        is_cut = listing.interfaces is None and listing.damage
        interfaces = () if is_cut else join([*(listing.interfaces or ()), *(traces.interfaces or ())])
        damage = tuple(f"{name}: {damage}" for damage in listing.damage)
        seen = replace(traces, interfaces=interfaces or None, routes=listing.routes, damage=damage)
        sources = tuple((field, name) for field in seen.known if field != "damage")
        facts = merge(facts, replace(seen, sources=sources))
        matrices += [(name, matrix) for matrix in find_matrices(text)]
    return _with_matrices(facts, matrices)


def _with_matrices(facts: Facts, matrices: list[tuple[str, PastedMatrix]]) -> Facts:
    """Add the matrices that are consistent. Two that differ are of two machines, and neither counts."""
    damage = [f"{name}: {matrix.damage}" for name, matrix in matrices if matrix.damage]
    counts = {matrix.gpus for _, matrix in matrices if matrix.gpus is not None}
    if facts.gpus is not None and counts:
        counts.add(len(facts.gpus))
    if len(counts) > 1:
        damage.append(f"GPUs are {' and '.join(map(str, sorted(counts)))}: of more than one machine?")
        return replace(facts, gpus=None, damage=(*facts.damage, *damage))
    if facts.gpus is None and counts:
        facts = merge(facts, Facts(gpus=(Gpu(),) * counts.pop(), sources=(("gpus", matrices[0][0]),)))
    for kind, command in (("links", "`nvidia-smi topo -m`"), ("p2p", "`nvidia-smi topo -p2p`")):
        readable = [(name, matrix) for name, matrix in matrices if matrix.kind == kind and matrix.cells]
        readable = [pair for pair in readable if not pair[1].pcie_only] or readable
        if not readable:
            continue
        name, matrix = readable[0]
        source = ((kind, f"{name}, {command}"),)
        if kind == "p2p":
            facts = merge(facts, Facts(p2p=matrix.cells, sources=source))
        elif len({other.cells for _, other in readable}) > 1:
            damage.append(f"{len(readable)} matrices that differ: of more than one machine?")
        else:
            torn = [other.damage for _, other in matrices if other.kind == kind and not other.cells]
            doubt = torn[0] if torn else PCIE_ONLY if matrix.pcie_only else ""
            nics = next((other.nics for _, other in readable if other.nics), ())
            seen = tuple(Nic(adapter, links) for adapter, links in nics) or None
            facts = merge(facts, Facts(links=matrix.cells, nics=seen, links_doubt=doubt, sources=source))
    return replace(facts, damage=(*facts.damage, *damage))


def _traces(text: str) -> Facts:
    """Return what NCCL's INFO lines, `nvidia-smi` and torch's `collect_env` mention; contradicting versions count as unknown."""
    vendor = VENDOR.search(text)
    facts = Facts(
        gpus=_gpus(text),
        driver=_only(DRIVER, text),
        nccl=_only(NCCL_VERSION, text),
        torch=_only(TORCH_VERSION, text),
        cpu=VENDORS.get(vendor[1]) if vendor else None,
    )
    return merge(facts, _network(text))


def _only(pattern: re.Pattern[str], text: str) -> str | None:
    values = {next(filter(None, match.groups())) for match in pattern.finditer(text)}
    return values.pop() if len(values) == 1 else None


def _gpus(text: str) -> tuple[Gpu, ...] | None:
    """Return the GPUs of `nvidia-smi -L` or of the table of `nvidia-smi`, if none is missing from 0 on."""
    for pattern in (GPU_NAME, GPU_ROW):
        names = {int(row[1]): row[2] for line in text.split("\n") if (row := pattern.match(line))}
        if names and sorted(names) == list(range(len(names))):
            return tuple(Gpu(name=names[number]) for number in sorted(names))
    return None


def _network(text: str) -> Facts:
    """Return the interfaces that NCCL took, in its order, each with the one address that its log prints."""
    taken: dict[str, Interface] = {}
    ports: dict[str, RdmaPort] = {}
    for line in text.split("\n"):
        match = USING.search(line)
        for name, where in NAMED.findall(match[1] or match[2]) if match else ():
            location = address(where)
            # An alias of the interface stands before the address: eno1:avahi:169.254.7.21.
            if not location.text:
                alias, _, rest = where.partition(":")
                location = address(rest, label=f"{name}:{alias}")
            taken.setdefault(location.label or name, Interface(name, addresses=(location,), up=True))
        match = IB.search(line)
        for device, port, layer in IB_PORT.findall(match[1]) if match else ():
            kind = "InfiniBand" if layer == "IB" else "Ethernet"
            ports.setdefault(f"{device}:{port}", RdmaPort(device, int(port), "ACTIVE", kind))
    return Facts(
        interfaces=tuple(taken.values()) or None,
        taken=tuple(taken) or None,
        rdma=tuple(ports.values()) or None,
    )


def clean(text: str) -> str:
    """Remove colours (also those whose first character an issue form ate), carriage returns and odd blanks."""
    text = ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\u00a0", " ").replace("\u202f", " ").replace("\ufeff", "")


def find_matrices(text: str) -> tuple[PastedMatrix, ...]:
    """Return every matrix in a text. A repeated header without rows does not count when another has rows."""
    # Without the marks of comments, quotes and fences in front of a line.
    bare = [COMMENT.sub("", line.replace("`", " ")) for line in clean(text).split("\n")]
    lines = _joined_headers(_without_bars(bare))
    heads = [(number, names) for number, line in enumerate(lines) if (names := _header(line))]
    matrices: list[PastedMatrix] = []
    for index, (number, names) in enumerate(heads):
        end = heads[index + 1][0] if index + 1 < len(heads) else len(lines)
        before = lines[heads[index - 1][0] + 1 if index else 0 : number + 1]
        matrices.append(_read(names, lines[number + 1 : end], before))
    whole = [matrix for matrix in matrices if not matrix.damage]
    empty = [matrix for matrix in matrices if matrix.damage == NO_ROWS]
    if whole or len(empty) < len(matrices):
        matrices = [matrix for matrix in matrices if matrix not in empty]
    if not matrices and (stray := _stray(lines)):
        return (stray,)
    return tuple(dict.fromkeys(matrices))


def _without_bars(lines: Iterable[str]) -> Iterator[str]:
    """Remove the bars of drawn tables, and the columns in front of a row's name."""
    skip = 0
    for line in lines:
        if line.count("|") < 3:
            yield line
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "GPU0" in cells and not any(_cell(cell, LINK) for cell in cells):
            skip = max(cells.index("GPU0") - 1, 0)
        yield "\t".join(cells[skip:])


def _joined_headers(lines: Iterable[str]) -> list[str]:
    """Join a header that a terminal wrapped between two GPUs."""
    joined: list[str] = []
    for line in lines:
        count = len([name for name in _header(joined[-1]) if name.startswith("GPU")]) if joined else 0
        rest = re.sub(rf"^\s*GPU{count}(?=\s|$)", "", line) if count else line
        if rest != line and re.fullmatch(rf"(?:\s*(?:{COLUMN}))*(?:\s*(?:{OTHER_HEADING}).*)?\s*", rest):
            joined[-1] = f"{joined[-1]} {line.strip()}"
        else:
            joined.append(line)
    return joined


def _header(line: str) -> tuple[str, ...]:
    """Return the names of the columns where this line is the head of a matrix."""
    start = re.search(r"(?<![\w-])GPU0(?![0-9])", line)
    if start is None:
        return ()
    names: list[str] = []
    rest = line[start.start() :]
    while match := re.match(rf"[\s&]*({COLUMN})", rest):
        names.append(match[1])
        rest = rest[match.end() :]
    return () if re.match(rf"\s*(?!{OTHER_HEADING})\S", rest) else tuple(names)


def _read(names: tuple[str, ...], lines: list[str], before: list[str]) -> PastedMatrix:
    """Read the block under one header."""
    gpus = [name for name in names if name.startswith("GPU")]
    legend = {match[1] for line in lines if (match := LEGEND.match(line))}
    command = next((match for line in reversed(before) if (match := COMMAND.search(line))), None)
    rows, stray = _rows(lines)
    if not rows:
        return PastedMatrix("links", len(gpus), damage=stray or NO_ROWS)
    words = " ".join(rest for _, rest in rows)
    is_links, is_status = (
        re.search(rf"(?<!\w)({kind.removeprefix('X|')})(?!\w)", words) is not None for kind in (LINK, STATUS)
    )
    kind = "p2p" if is_status and not is_links else "links"
    pcie_only = kind == "links" and (
        (command is not None and command[1] == "-mp")
        or ("PIX" in legend and "NV#" not in legend and "SOC" not in legend)
    )
    if is_status and is_links:
        return PastedMatrix(kind, len(gpus), damage="words of `topo -m` and `topo -p2p` are mixed")
    if gpus != [f"GPU{number}" for number in range(len(gpus))] or names[: len(gpus)] != tuple(gpus):
        return PastedMatrix(kind, len(gpus), damage="the columns of the GPUs are not in order")
    cells, damage = _cells(len(gpus), len(names), rows, LINK if kind == "links" else STATUS)
    damage = damage or stray or _contradiction(cells, both_ways=kind == "links")
    if damage:
        return PastedMatrix(kind, len(gpus), damage=damage)
    cut = _missing(names, [name for name, _ in rows])
    return PastedMatrix(kind, len(gpus), cells, pcie_only, cut, _nics(names, rows, lines))


def _nics(
    names: tuple[str, ...], rows: list[tuple[str, str]], lines: list[str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the adapters that have a column, each with its links to the GPUs, if no cell of them is missing."""
    of_gpus = [_row(rest, len(names), LINK) for name, rest in rows if name.startswith("GPU")]
    if any(len(cells) < len(names) for cells in of_gpus):
        return ()
    named = (re.match(r"\s*(NIC\d+):\s*(\w+)", line) for line in lines)
    legend = {match[1]: match[2] for match in named if match}
    return tuple(
        (legend.get(name, name), tuple(cells[column] for cells in of_gpus))
        for column, name in enumerate(names)
        if not name.startswith(("GPU", "NVMe"))
    )


def _rows(lines: list[str]) -> tuple[list[tuple[str, str]], str]:
    """Return name and rest of every row, wrapped lines included, and the damage of the block."""
    rows: list[tuple[str, str]] = []
    open_row = False
    for line in lines:
        match = re.match(rf"\s*({COLUMN})(?=\s|$)", line)
        if match and not re.match(r"\s*:", line[match.end() :]):
            rest = line[match.end() :]
            if re.search(r"(?<!\w)GPU\d+(?!\w)", rest):
                return rows, "rows run into each other"
            if not re.search(r"\S", rest):
                continue
            rows.append((match[1], rest))
            open_row = True
        elif not line.strip() or LEGEND.match(line) or "Legend" in line:
            open_row = False
            if "Legend" in line:
                break
        elif open_row and rows:
            rows[-1] = (rows[-1][0], f"{rows[-1][1]}\n{line}")
    return rows, ""


def _cells(
    gpus: int, columns: int, rows: list[tuple[str, str]], words: str
) -> tuple[tuple[tuple[str, ...], ...], str]:
    """Return the square of the GPUs, or its damage."""
    wanted = [f"GPU{number}" for number in range(gpus)]
    of_gpus = [(name, rest) for name, rest in rows if name.startswith("GPU")]
    named = [name for name, _ in of_gpus]
    if named != wanted:
        return (), _missing(wanted, named) or "the rows of the GPUs are repeated or not in order"
    square = []
    for name, rest in of_gpus:
        cells = _row(rest, columns, words)
        if len(cells) < gpus:
            return (), f"the row of {name} has {len(cells)} readable cells for {gpus} GPUs"
        square.append(tuple(cells[:gpus]))
    return tuple(square), ""


def _missing(wanted: Iterable[str], named: list[str]) -> str:
    missing = [name for name in wanted if name not in named]
    return f"cut: no row for {', '.join(missing)}" if missing else ""


def _row(rest: str, columns: int, words: str) -> list[str]:
    """Return the cells of one row. A wrapped row counts when it reads the same with and without a blank at the break."""
    if "\n" not in rest:
        return _split(rest, columns, words)
    first = _split(rest.partition("\n")[0], columns, words)
    joined = [_split(rest.replace("\n", glue), columns, words) for glue in ("", " ")]
    longer = [cells for cells in joined if len(cells) > len(first)]
    return longer[0] if len(set(map(tuple, longer))) == 1 else first


def _split(text: str, columns: int, words: str) -> list[str]:
    """Return cells from the left, at most one for each column, up to the first word that is no cell."""
    parts = itertools.takewhile(bool, (_cell(word, words) for word in text.split()))
    return list(itertools.islice(itertools.chain.from_iterable(parts), columns))


def _cell(word: str, words: str) -> list[str]:
    """Return one cell, or several without a blank between them; none where a letter is left over."""
    return re.findall(words, word) if re.fullmatch(rf"(?:{words})+", word) else []


def _contradiction(cells: tuple[tuple[str, ...], ...], *, both_ways: bool) -> str:
    for number, row in enumerate(cells):
        for other, cell in enumerate(row):
            if (cell == "X") != (number == other):
                return f"the cell of GPU{number} and GPU{other} is `{cell}`"
            if cell == "N/A":
                return f"the cell of GPU{number} and GPU{other} is `N/A`"
            if both_ways and cell != cells[other][number]:
                return f"GPU{number} → GPU{other} is `{cell}`, the way back is `{cells[other][number]}`"
    return ""


def _stray(lines: list[str]) -> PastedMatrix | None:
    """Return a damaged matrix for rows whose header is missing.

    A row has a cell for each adapter, too. The GPUs are counted where their rows begin with GPU0 and either a row of
    an adapter follows or the rows are a square.
    """
    rows = [(name, _split(rest, len(rest), f"{LINK}|{STATUS}")) for name, rest in _rows(lines)[0]]
    rows = [(name, cells) for name, cells in rows if len(cells) > 1]
    gpus = [name for name, _ in rows if name.startswith("GPU")]
    if not gpus:
        return None
    is_square = all(len(cells) == len(gpus) for _, cells in rows)
    is_counted = gpus == [f"GPU{number}" for number in range(len(gpus))]
    is_whole = is_counted and (is_square or len(gpus) < len(rows))
    return PastedMatrix("links", len(gpus) if is_whole else None, damage="cut: there are rows and no header")
