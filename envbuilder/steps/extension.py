"""Make one extension: `extension.py SPEC INPUTS OUT`. Runs under the environment's own Python, without a GPU.

SPEC has `name`, `form`, `key` (of what it makes) and `gpus`, such as 8.0. Its sources are `files`, path → sha256, which lie in
INPUTS/files, or INPUTS/archive, whose first folder is left out with `strip`; `patch` is one of `files`. `commit` is what `git rev-parse
HEAD` answers (`git.sh`). By `form`:

* `load`: `call` has the arguments of torch's `load()` or `load_inline()`, with /space/src as the folder of the sources.
* `project`: the setup.py or pyproject.toml in the folder `path` makes a wheel, which is installed. A setup.py gets the `options`.
* `capture`: `lines` of Python run in the folder `path`, and each call of `load()` and `load_inline()` that they make is
  compiled. `key` is then that of the surroundings. With `only`, the calls and their files are written to OUT and not compiled.

With INPUTS/captured, the result of such a capture, `call` is one of its calls. OUT gets a folder for each call, 0 for the only one,
with `tree`, the files below /, and `index.json`, the entry of the image's index.

/space is the build directory, which a runner may keep for ninja. The file `jobs` beside SPEC may hold the number of compilers: OUT then
gets `memory`, the bytes of the largest process of the compile, also of one that failed.
"""

import hashlib
import json
import os
import posixpath
import re
import resource
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile

from gpu_code import read_gpu_code

STEPS = os.path.dirname(os.path.abspath(__file__))
PREFIX = "/opt/env"
SPACE, SOURCE, KEPT, BUILD = "/space", "/space/src", "/space/kept", "/space/build"
FACTS = "/space/facts.json"
NEW = "/space/new"  # the sources before they are compared with those of the last build
SCRATCH = "/tmp/extension"
TIMES, SPARE, ENTRY = 100, 256 << 20, 512  # an archive of sources unpacks to 14 times its size at most; bytes
STRIP = "-Wl,--build-id=none,--strip-all"  # symbol tables hold nvcc's temporary file names
OBJECTS = re.compile(r"(^|/)build/temp\.[^/]+(/|$)")  # where setuptools keeps objects and ninja's state
NOT_TAKEN = {
    "load": ("cpp_sources", "cuda_sources", "functions", "with_pytorch_error_handling"),
    "load_inline": ("sources", "is_standalone"),
}
# A compiler may read all files of a captured project except these.
NOT_COMPILED = (
    ".py", ".pyi", ".pyc", ".toml", ".cfg", ".ini", ".json", ".yaml", ".yml", ".txt", ".md", ".so", ".o"
)  # fmt: skip
CALL_NAME = re.compile(r"(?!\.)[^\x00-\x1f\x7f/]{1,100}")  # it becomes part of paths
MEMORY = 3 << 30  # bytes that a compile with torch's headers may need
LIMIT = 8 << 30  # bytes of a library: those of PyTorch's own wheels have up to 1 GB


# ---- files, which a project's code may have replaced by links, pipes or endless ones


def opened(path):
    """Open a regular file, never through a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > LIMIT:
        sys.exit(f"{path} is no regular file, or larger than {LIMIT} bytes")
    return os.fdopen(descriptor, "rb")


def read(path):
    with opened(path) as stream:
        return stream.read()


def read_json(path):
    try:
        return json.loads(read(path))
    except (OSError, ValueError, RecursionError) as error:
        sys.exit(f"the build left no {path} that can be read: {error}")


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(content)


def write_json(path, value):
    write(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def files_in(folder):
    """Return the paths of the regular files below a folder, sorted."""
    paths = [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]
    return sorted(os.path.relpath(path, folder) for path in paths if stat.S_ISREG(os.lstat(path).st_mode))


def remove(path):
    """Remove whatever lies there. A project may leave folders that nobody may read."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    for parent, folders, _ in os.walk(path):
        for name in folders:
            if not os.path.islink(os.path.join(parent, name)):
                os.chmod(os.path.join(parent, name), 0o700)
    shutil.rmtree(path)


def empty_folder(path):
    if os.path.lexists(path):
        remove(path)
    os.makedirs(path)


def tidy(folder, is_kept):
    """Leave nothing in a folder but the regular files that are kept. Links, pipes and folders in place of a file go too."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        empty_folder(folder)
    os.chmod(folder, 0o700)
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        folders[:] = [name for name in folders if name not in links]
        for name in folders:
            os.chmod(os.path.join(parent, name), 0o700)
        for path in (os.path.join(parent, name) for name in names + links):
            if not (stat.S_ISREG(os.lstat(path).st_mode) and is_kept(os.path.relpath(path, folder))):
                os.unlink(path)
    for parent, _, _ in os.walk(folder, topdown=False):
        if parent != folder and not os.listdir(parent):
            os.rmdir(parent)


def place(sources, folder):
    """Make `folder` hold exactly the files of `sources`, and objects.

    ninja compares times, so an unchanged file keeps its own.
    """
    wanted = files_in(sources)
    is_wanted = set(wanted).__contains__
    tidy(folder, lambda name: is_wanted(name) or OBJECTS.search(name))
    for name in wanted:
        target, content = os.path.join(folder, name), read(os.path.join(sources, name))
        if os.path.isdir(target):
            remove(target)
        if not os.path.exists(target) or read(target) != content:
            write(target, content)
        shutil.copymode(os.path.join(sources, name), target)


def clear_space(*, is_kept):
    """Remove what an earlier build left, except sources and objects where a runner keeps them for the same extension."""
    os.makedirs(SPACE, exist_ok=True)
    for name in os.listdir(SPACE):
        if name in ("src", "kept", "build") and is_kept:
            tidy(os.path.join(SPACE, name), lambda _: True)
        else:
            remove(os.path.join(SPACE, name))


# ---- the sources


def stage(spec, inputs):
    """Write the sources of the extension, patched, into NEW."""
    empty_folder(NEW)
    for path, digest in spec["files"].items():
        content = read(os.path.join(inputs, "files", path))
        if hashlib.sha256(content).hexdigest() != digest:
            sys.exit(f"{path} is not the file that is locked: its sha256 differs")
        if path != spec["patch"] and not spec["archive"]:
            write(os.path.join(NEW, path), content)
    if spec["archive"]:
        unpack(os.path.join(inputs, "archive"), spec["strip"])
    if spec["patch"]:
        lines = lines_of(read(os.path.join(inputs, "files", spec["patch"])))
        try:
            apply_patch(lines, NEW if spec["archive"] else os.path.join(NEW, spec["path"]))
        except (ValueError, OSError) as error:
            sys.exit(f"the patch {spec['patch']} does not fit: {error}")


def unpack(archive, strip):
    """Unpack a tar or zip file into NEW. A link stands for the file that it names, a dangling one for nothing."""
    left = TIMES * os.stat(archive).st_size + SPARE
    for name, stream, mode in tar_files(archive) if tarfile.is_tarfile(archive) else zip_files(archive):
        if name.startswith("/") or ".." in name.split("/"):
            sys.exit(f"the archive holds {name}, which would be written outside its folder")
        parts = [part for part in name.split("/") if part not in ("", ".")][1 if strip else 0 :]
        content = stream.read(left + 1)
        left -= len(content) + ENTRY
        if left < 0:
            sys.exit(f"the archive unpacks to more than {TIMES} times its size")
        if parts:
            write(os.path.join(NEW, *parts), content)
            os.chmod(os.path.join(NEW, *parts), 0o755 if mode & 0o100 else 0o644)


def tar_files(archive):
    with tarfile.open(archive) as members:
        for member in members:
            try:
                stream = None if member.isdir() or member.issparse() else members.extractfile(member)
            except (KeyError, RecursionError):  # a dangling link, or a circle of them
                continue
            if stream:
                yield member.name, stream, member.mode


def zip_files(archive):
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if not member.is_dir():
                with members.open(member) as stream:
                    yield member.filename, stream, member.external_attr >> 16


def lines_of(content):
    """Return the lines as git counts them: a carriage return ends none."""
    return re.findall(rb"[^\n]*\n|[^\n]+", content)


def apply_patch(lines, folder):
    """Apply a patch as `git diff` writes it. Its hunks may lie elsewhere, but their lines must be the same."""
    at, named = 0, b""
    while at < len(lines):
        line = lines[at]
        if line.startswith(b"diff --git "):
            named = b"+++ " + line.rstrip().rpartition(b" ")[2]
        if line.startswith((b"GIT binary patch", b"Binary files", b"rename ", b"copy ")):
            raise ValueError(f"{line.decode().strip()}: only texts can be patched")
        if line.startswith((b"new file mode 12", b"new mode 12")):
            raise ValueError("it makes a link, which could lead to any file")
        at += 1
        is_empty = not any(after.startswith(b"--- ") for after in lines[at : at + 2])  # one is `index`
        if line.startswith(b"new file mode") and is_empty:
            write(os.path.join(folder, patched_path(named)), b"")
        if line.startswith(b"deleted file mode") and is_empty:
            os.unlink(os.path.join(folder, patched_path(named)))
        if line.startswith(b"--- ") and at < len(lines) and lines[at].startswith(b"+++ "):
            before, after = patched_path(line), patched_path(lines[at])
            at = patch_file(lines, at + 1, before, after, folder)


def patched_path(line):
    """Return the path in a head of a patch, "" for /dev/null."""
    name = line[4:].decode().partition("\t")[0].strip()
    path = name.partition("/")[2]
    if name != "/dev/null" and (not path or path.startswith("/") or ".." in path.split("/")):
        raise ValueError(f"{name}: expected a path below the project, as `git diff` writes it")
    return "" if name == "/dev/null" else path


def patch_file(lines, at, before, after, folder):
    """Apply the hunks of one file. Returns the number of the line after them."""
    old = lines_of(read(os.path.join(folder, before))) if before else []
    new: list[bytes] = []
    done = 0
    while at < len(lines) and lines[at].startswith(b"@@"):
        head = re.match(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@", lines[at])
        if not head:
            raise ValueError(f"line {at + 1} is no head of a hunk")
        left = [1 if count is None else int(count) for count in head.groups()[1:]]
        removed: list[bytes] = []
        added: list[bytes] = []
        sides = [removed, added]
        at += 1
        while at < len(lines) and (any(left) or lines[at].startswith(b"\\")):
            sign, text = lines[at][:1], lines[at][1:]
            at += 1
            if sign == b"\\":  # the line before has no end
                for side in sides:
                    side[-1] = side[-1].rstrip(b"\n")
                continue
            sides = {b"-": [removed], b"+": [added]}.get(sign, [removed, added])
            for side in sides:
                side.append(text if sign in b"-+ " else lines[at - 1])
            left = [left[0] - (sign != b"+"), left[1] - (sign != b"-")]
        wanted = max(int(head[1]) - 1, 0)
        places = [at for at in range(done, len(old) + 1) if old[at : at + len(removed)] == removed]
        if not places:
            raise ValueError(f"{before or after}: the lines of the hunk at {head[1].decode()} are not there")
        start = min(places, key=lambda place: abs(place - wanted))
        new += old[done:start] + added
        done = start + len(removed)
    if before:
        os.unlink(os.path.join(folder, before))
    if after:
        write(os.path.join(folder, after), b"".join(new + old[done:]))
    return at


# ---- the programs that compile


def environment(spec, jobs, *, simulates=False, chooses=False):
    """Return the variables of a program: `simulates` a GPU of the recipe, and `chooses` its GPUs where a project names others."""
    variables = dict(spec["env"])
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
    env = {name: value for name, value in os.environ.items() if name in kept}
    env.update(
        CC="gcc",
        CXX="g++",
        CUDA_HOME="/usr/local/cuda",
        LIBRARY_PATH="/usr/local/cuda/lib64/stubs",  # of the linker, which finds no driver here; no program runs by it
        MAX_JOBS=str(jobs),
        NVCC_APPEND_FLAGS="--objdir-as-tempdir",  # names without the process id make objects reproducible
        TORCH_CUDA_ARCH_LIST=";".join(spec["gpus"]),
        TORCH_EXTENSIONS_DIR="/tmp/extensions",
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONHASHSEED="0",
    )
    if simulates:
        env["PYTHONPATH"] = os.path.join(SCRATCH, "customize")
        env["PATH"] = os.path.join(SCRATCH, "bin") + ":" + env["PATH"]
        if spec["gpus"]:
            env["_ENVBUILDER_CAPABILITY"] = spec["gpus"][0]
    if chooses and spec["gpus"] and "TORCH_CUDA_ARCH_LIST" not in variables:
        env["_ENVBUILDER_GPUS"] = ";".join(spec["gpus"])
    env.update(variables)
    env.update(preload())
    return env


def compile_steady():
    """Compile steady.c for the processors of the toolkit's programs and of the compilers that these start."""
    tool = "/usr/local/cuda/bin/cudafe++"
    if not os.path.exists(tool):
        return
    for compiler in ["gcc"] if machine(tool) == machine(sys.executable) else ["gcc", "x86_64-linux-gnu-gcc"]:
        triple = subprocess.run([compiler, "-print-multiarch"], stdout=subprocess.PIPE, check=True).stdout
        folder = os.path.join(SCRATCH, "lib", triple.decode().strip())
        os.makedirs(folder)
        library, source = os.path.join(folder, "steady.so"), os.path.join(STEPS, "steady.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)


def preload():
    """Return the variable that loads what `compile_steady` made into every program."""
    folder = os.path.join(SCRATCH, "lib")
    triples = os.listdir(folder) if os.path.isdir(folder) else []
    # The loader of each processor puts its own folder for $LIB (ld.so(8)).
    last = "$LIB" if len(triples) > 1 else "/".join(["lib", *triples])
    return {"LD_PRELOAD": os.path.join(SCRATCH, last, "steady.so")} if triples else {}


def machine(path):
    """Return the processor that a program is for."""
    with open(path, "rb") as stream:
        return stream.read(20)[18:]


def link_flags():
    """Return the linker's flags without which the same sources give other bytes elsewhere."""
    return STRIP if os.uname().machine == "x86_64" else f"{STRIP},-T,{STEPS}/no_comment.ld"


def run(words, env, folder, errors=None):
    """Run a program, whose output is the cause if it fails."""
    sys.stdout.flush()
    ended = subprocess.run(words, env=env, cwd=folder, stdin=subprocess.DEVNULL, stderr=errors, check=False)
    status = ended.returncode
    if status:
        sys.exit(status if status > 0 else 128 - status)


def run_step(program, spec, env, folder):
    """Run a program that lies beside this one. Its SPEC lies where no later code of a project reaches."""
    write_json(os.path.join(SCRATCH, "spec.json"), spec)
    run([sys.executable, os.path.join(STEPS, program), os.path.join(SCRATCH, "spec.json")], env, folder)


# ---- the three forms


def compile_call(spec, call, key, jobs, out):
    """Compile one call of torch's `load()` or `load_inline()`, whose sources lie in SOURCE."""
    tidy(BUILD, lambda _: True)
    arguments = dict(call, **json.loads(call["others"]))
    arguments["functions"] = json.loads(call["functions"])
    for name in ("function", "others", *NOT_TAKEN[call["function"]]):
        del arguments[name]
    arguments.update(extra_ldflags=[*call["extra_ldflags"], link_flags()], build_directory=BUILD)
    given = {"function": call["function"], "arguments": arguments, "facts": FACTS}
    run_step("compile_call.py", given, environment(spec, jobs, chooses=spec["form"] == "capture"), SOURCE)
    facts = read_json(FACTS)
    library = call["name"] if call["is_standalone"] else call["name"] + ".so"
    path = f"/opt/envbuilder/extensions/{call['name']}-{key[:16]}/{library}"
    target = os.path.join(out, "tree", path[1:])
    os.makedirs(os.path.dirname(target))
    with opened(os.path.join(BUILD, library)) as source, open(target, "wb") as copy:
        shutil.copyfileobj(source, copy)
    os.chmod(target, 0o755)
    base = base_of(call)
    digests = {posixpath.relpath(file, base or "/"): digest for file, digest in facts.pop("files").items()}
    sources = [posixpath.relpath(file, base or "/") for file in call["sources"]]
    entry = {
        "name": call["name"],
        "function": call["function"],
        "file": path,
        "is_python_module": call["is_python_module"],
        "is_standalone": call["is_standalone"],
        "arguments": decisive_arguments(call),
        "sources": {file: digests.get(file, "") for file in sources},
        "headers": {file: digest for file, digest in digests.items() if file not in sources},
    }
    has_cuda = call["with_cuda"]
    if has_cuda is None:  # torch's own rule
        has_cuda = bool(call["cuda_sources"] or [file for file in sources if file.endswith((".cu", ".cuh"))])
    finish(spec, out, key, entry, facts, [target], has_cuda)


def base_of(call):
    """Return the folder that paths in the index are relative to, because the project may be elsewhere at run time."""
    folders = [posixpath.dirname(source) for source in call["sources"]] or call["extra_include_paths"]
    return posixpath.commonpath(folders) if folders else ""


def decisive_arguments(call):
    """Return the arguments by which the start hook recognizes a call. Flags with paths of a build are left out."""
    flags = ("extra_cflags", "extra_cuda_cflags")
    arguments = {name: [flag for flag in call[name] if SPACE + "/" not in flag] for name in flags}
    if call["function"] == "load_inline":
        for name in ("cpp_sources", "cuda_sources", "with_pytorch_error_handling"):
            arguments[name] = call[name]
        arguments["functions"] = json.loads(call["functions"])
    return arguments


def build_project(spec, jobs, out):
    """Build the project's wheel and install it. The build is not isolated, since torch must be the recipe's own."""
    project = os.path.normpath(os.path.join(SOURCE, spec["path"]))
    fixed = {
        "SOURCE_DATE_EPOCH": str(spec["epoch"]),
        "LDFLAGS": link_flags(),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "TMPDIR": SCRATCH,  # uv leaves a lock there
    }
    env = dict(fixed, **environment(spec, jobs, simulates=True, chooses=True))
    env["UV_NO_INSTALLER_METADATA"] = "1"  # it holds the time at which the wheel was made
    uv = [STEPS + "/uv", "--no-config", "--offline", "--no-progress", "--cache-dir", "/space/cache"]
    wheels, tree = "/space/wheel", os.path.join(out, "tree")
    words = [
        "build",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        wheels,
        *("--config-setting=--build-option=" + option for option in spec["options"]),
        project,
    ]
    run([*uv, *words], env, project, subprocess.STDOUT)
    (wheel,) = [name for name in os.listdir(wheels) if name.endswith(".whl")]
    name, version = wheel.split("-")[:2]
    words = ["pip", "install", "--no-index", "--find-links", wheels, "--no-deps", "--link-mode", "copy"]
    words += ["--python", sys.executable, "--prefix", tree + PREFIX, name + "==" + version]
    run([*uv, *words], env, project, subprocess.STDOUT)
    lock = tree + PREFIX + "/.lock"  # uv's own, and the environment has one
    if os.path.lexists(lock):
        os.unlink(lock)
    # As in the Python layer: byte code is never compared with its source, and names its path in the image.
    # `-W ignore`: before Python 3.11 a warning leaves its mark on the byte code that follows. A file may be none of this Python's.
    words = ["-W", "ignore", "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash", "-s"]
    installed = tree + PREFIX + "/lib"
    subprocess.run([sys.executable, *words, tree, "-p", "/", installed], env=env, cwd=project, check=False)
    run([sys.executable, STEPS + "/byte_code.py", "check", installed], env, project)
    run_step("compile_call.py", {"function": "", "facts": FACTS}, env, project)
    facts = read_json(FACTS)
    del facts["files"]
    libraries = [os.path.join(tree, name) for name in files_in(tree) if re.search(r"\.so(\.[^/]*)?$", name)]
    entry = {"name": spec["name"], "function": "package"}
    entry["libraries"] = [path[len(tree) :] for path in libraries]
    cuda = any(name.endswith(".cu") for name in files_in(project))
    finish(spec, out, spec["key"], entry, facts, libraries, cuda)


def capture(spec, folder):
    """Run the lines of a capture. Writes the calls that they make, and the files that these may read, into `folder`."""
    given = {"lines": spec["lines"], "source": SOURCE, "kept": KEPT, "calls": SPACE + "/calls.json"}
    given["places"] = SPACE + "/places.json"
    project = os.path.normpath(os.path.join(SOURCE, spec["path"]))
    run_step("capture_calls.py", given, environment(spec, 1, simulates=True), project)
    for source, name in ((SOURCE, "src"), (KEPT, "kept")):
        for path in () if os.path.islink(source) else files_in(source):
            if os.path.splitext(path)[1] not in NOT_COMPILED:
                write(os.path.join(folder, name, path), read(os.path.join(source, path)))
    calls = read_json(SPACE + "/calls.json")
    for call in calls:
        if not CALL_NAME.fullmatch(call["name"]):
            sys.exit(f"calls.json: {call['name']!r} is no name of a module")
        for file in map(os.path.normpath, call["sources"]):
            if file.startswith(SPACE + "/") and not os.path.isfile(folder + file[len(SPACE) :]):
                what = "names the source `%s`, which is no regular file" % file
                sys.exit(f"the call that compiles `{call['name']}` {what}")
    write_json(os.path.join(folder, "calls.json"), calls)
    write_json(os.path.join(folder, "places.json"), read_json(SPACE + "/places.json"))


def compile_captured(spec, call, key, captured, jobs, out):
    """Compile one call of a capture from the files in the folder `captured` alone."""
    place(os.path.join(captured, "src"), SOURCE)
    place(os.path.join(captured, "kept"), KEPT)
    compile_call(spec, call, key, jobs, out)


def compile_all(spec, jobs, out):
    """Capture the calls and compile each, as a runner does that keeps their results apart."""
    captured = SPACE + "/captured"
    capture(spec, captured)
    calls = read_json(captured + "/calls.json")
    if not calls:
        sys.exit(f"the lines of `capture` of the extension `{spec['name']}` compile nothing")
    names = [name for name in files_in(captured) if name not in ("calls.json", "places.json")]
    files = [(name, hashlib.sha256(read(os.path.join(captured, name))).hexdigest()) for name in names]
    places = read_json(captured + "/places.json")
    for number, call in enumerate(calls):
        print("compile `%s`, which %s loads" % (call["name"], places[number] or "a line"), flush=True)
        empty_folder(BUILD)
        parts = [spec["key"], json.dumps(call, sort_keys=True), json.dumps(files)]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        compile_captured(spec, call, key, captured, jobs, os.path.join(out, str(number)))


def finish(spec, out, key, entry, facts, libraries, has_cuda):
    """Write the entry of the index. Fails unless libraries with CUDA sources hold code for each of the recipe's GPUs."""
    held = {}
    for library in libraries:
        with opened(library) as stream:
            try:
                held[library[len(out) :]] = [code.target for code in read_gpu_code(stream)]
            except ValueError as error:
                sys.exit(f"`{os.path.basename(library)}` cannot be read: {error}")
    every = sorted({target for targets in held.values() for target in targets})
    entry.update(key=key, size=sum(os.path.getsize(library) for library in libraries), targets=every)
    write_json(os.path.join(out, "index.json"), {"entry": entry, "facts": facts, "held": held})
    wanted = {"sm_" + gpu.replace(".", "").rstrip("af") for gpu in spec["gpus"]}
    lacking = [""] if has_cuda and not every else [name for name in held if held[name]]
    for name in lacking:
        targets = held.get(name, [])
        if not wanted <= {target.rstrip("af") for target in targets}:
            need = " ".join(sorted(wanted))
            has = " ".join(targets) or "no GPU at all"
            sys.exit(f"the extension `{spec['name']}` holds code for {has}; the recipe's GPUs need {need}")


def compilers(spec_file):
    """Return how many compilers may run at once, as the runner says, otherwise by cores and memory; and whether it keeps SPACE."""
    path = os.path.join(os.path.dirname(spec_file), "jobs")
    if os.path.exists(path):
        return int(read(path)), True
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // MEMORY)), False


def note_memory(out):
    """Write how much the largest process so far took, of all that this program waited for, and that these did."""
    write(os.path.join(out, "memory"), b"%d" % (resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10))


def main(spec_file, inputs, out):
    os.umask(0o022)
    spec, first, captured = read_json(spec_file), os.path.join(out, "0"), os.path.join(inputs, "captured")
    jobs, is_kept = compilers(spec_file)
    empty_folder(SCRATCH)
    os.mkdir(SCRATCH + "/customize")
    shutil.copyfile(STEPS + "/sitecustomize.py", SCRATCH + "/customize/sitecustomize.py")
    if not re.fullmatch("([0-9a-f]{40})?", spec["commit"]):
        sys.exit(f"{spec['commit']!r} is no commit")
    program = os.path.join(SCRATCH, "bin/git")
    write(program, read(STEPS + "/git.sh").replace(b"=COMMIT", b"=" + spec["commit"].encode()))
    os.chmod(program, 0o755)
    compile_steady()
    clear_space(is_kept=is_kept)
    try:
        if os.path.isdir(captured):
            compile_captured(spec, spec["call"], spec["key"], captured, jobs, first)
        else:
            stage(spec, inputs)
            place(NEW, SOURCE)
            if spec["form"] == "load":
                compile_call(spec, spec["call"], spec["key"], jobs, first)
            elif spec["form"] == "project":
                build_project(spec, jobs, first)
            elif spec["only"]:
                capture(spec, os.path.join(out, "captured"))
            else:
                compile_all(spec, jobs, out)
    finally:
        if is_kept:
            note_memory(out)
    clear_space(is_kept=is_kept)
    remove(SCRATCH)


if __name__ == "__main__":
    main(*sys.argv[1:])
