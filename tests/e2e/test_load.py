"""torch's `load()` in a read-only SIF: what the image holds is found, and what it does not hold never hangs or misleads.

The extensions here are compiled by torch inside the SIF, indexed as a build does it, and bound over the SIF's own, so that
there is one for every kind of call. They use nothing of torch's headers: each compiles in a second.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import driver
from tests.support.workbench import NOBODY, Built, Ended, as_nobody, attempt, open_folder, run

pytestmark = pytest.mark.builds

INDEX = "/opt/envbuilder/extensions"
CLONED = "/home/user/cloned"

MODULE = """
#include <Python.h>
#include "shape.h"
static PyObject *answer(PyObject *, PyObject *) { return PyLong_FromLong(ANSWER * FACTOR); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {}};
static PyModuleDef_Slot slots[] = {{0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", nullptr, 0, methods, slots};
PyMODINIT_FUNC PyInit_NAME() { return PyModuleDef_Init(&module); }
"""
FILES = {
    "op/lite.cpp": MODULE.replace("NAME", "lite"),
    "op/more/extra.cpp": "int extra() { return 1; }\n",
    "op/plain.cpp": '#include <cstdlib>\nstatic int loaded = setenv("PLAIN_IS_LOADED", "1", 1);\n',
    "op/tool.cpp": '#include <cstdio>\nint main() { puts("a program"); }\n',
    "op/inlined.cpp": MODULE.replace("NAME", "inlined").replace('#include "shape.h"', "#define ANSWER 14"),
    "op/unknown.cpp": MODULE.replace("NAME", "unknown"),
    "op/broken.cpp": "#include <Python.h>\nint f() { return no_such_thing; }\n",
    "include/shape.h": "#define ANSWER 14\n",
    "driver/nvml.c": (driver.HERE / "nvml.c").read_text(),
}


class Inside:
    """Runs Python in the SIF as an ordinary user, with nothing on PATH; /tmp and the project are the test's own."""

    def __init__(self, sif: Path, folder: Path) -> None:
        self.sif, self.code, self.tmp, self.made = sif, folder / "code", folder / "tmp", folder / "made"
        for name, text in FILES.items():
            path = self.code / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for place in (self.tmp, self.made):
            place.mkdir()
            place.chmod(0o1777)
        self.calls = folder / "calls.py"  # a copy: other users cannot enter every checkout
        shutil.copyfile(Path(__file__).with_name("calls.py"), self.calls)

    def attempt(self, script: str, *binds: str, **env: str) -> Ended:
        binds = binds or (f"{self.made}:{INDEX}:ro",)
        calls = f"{self.calls}:/calls/calls.py"
        mounts = ",".join((f"{self.code}:{CLONED}:ro", f"{self.tmp}:/tmp", calls, *binds))
        variables = {"PATH": "/nowhere", "PYTHONPATH": "/calls", **env}
        settings = (f"{name}={value}" for name, value in variables.items())
        return attempt(
            *as_nobody("apptainer", "exec", "--bind", mounts, self.sif, "/usr/bin/env", "-u", "CUDA_HOME", *settings),
            "/opt/env/bin/python", "-c", f"import os, sys\nfrom calls import *\n{script}", cwd=Path("/"), timeout=120,
        )  # fmt: skip

    def __call__(self, script: str, *binds: str, **env: str) -> str:
        ended = self.attempt(script, *binds, **env)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


def entry(name: str, **change: object) -> dict[str, object]:
    plain: dict[str, object] = {
        "name": name, "function": "load", "file": f"{INDEX}/{name}/{name}.so", "targets": [], "sources": {}, "headers": {},
        "is_python_module": True, "is_standalone": False, "arguments": {"extra_cflags": [], "extra_cuda_cflags": []},
    }  # fmt: skip
    return plain | change


def digests(*paths: str) -> dict[str, str]:
    return {os.path.relpath(path, "op"): hashlib.sha256(FILES[path].encode()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def inside(cpu: Built) -> Iterator[Inside]:
    flags = {"extra_cflags": ["-DFACTOR=3", "-O1"], "extra_cuda_cflags": []}
    texts = {"cpp_sources": [FILES["op/inlined.cpp"]], "functions": None, "no_implicit_headers": True}
    entries = [
        entry("lite", sources=digests("op/lite.cpp", "op/more/extra.cpp"), headers=digests("include/shape.h"), arguments=flags),
        entry("plain", sources=digests("op/plain.cpp"), is_python_module=False),
        entry("tool", sources=digests("op/tool.cpp"), is_python_module=False, is_standalone=True, file=f"{INDEX}/tool/tool"),
        entry("inlined", function="load_inline", arguments=flags | texts),
    ]  # fmt: skip
    with open_folder() as folder:
        made = Inside(cpu.sif, folder)
        compiled = made(
            "compile_all('/made')",
            f"{made.made}:/made",
            PATH="/usr/local/bin:/usr/bin:/bin",
            ENVBUILDER_START="off",
        )
        facts = {"version": 2, "architectures": ["8.0"], "extensions": entries} | json.loads(compiled)
        (made.made / "index.json").write_text(json.dumps(facts))
        yield made


@pytest.fixture(autouse=True)
def _empty_tmp(inside: Inside) -> Iterator[None]:
    yield
    for path in inside.tmp.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_every_kind_of_call_finds_its_extension(inside: Inside):
    """Without compiler, ninja and CUDA_HOME, without a home, and with nothing on PATH."""
    printed = inside(
        "import ctypes\n"
        "print(lite().answer(), lite().__file__)\n"
        "print(sys.modules['lite'].answer())\n"
        "print(inlined().answer(), inlined().__file__)\n"
        "print(plain(), ctypes.CDLL(None).getenv(b'PLAIN_IS_LOADED') != 0)\n"
        "print(tool(), flush=True)\n"
        "os.spawnv(os.P_WAIT, tool(), ['tool'])\n"
    )
    assert printed.splitlines() == [
        f"42 {INDEX}/lite/lite.so", "42", f"42 {INDEX}/inlined/inlined.so", f"{INDEX}/plain/plain.so True",
        f"{INDEX}/tool/tool", "a program",
    ]  # fmt: skip


def test_paths_and_times_do_not_matter(inside: Inside):
    """Cloned afresh to another place, and named relative to it."""
    printed = inside(
        "import shutil\n"
        f"shutil.copytree({CLONED!r}, '/tmp/clone', copy_function=shutil.copyfile)\n"
        "os.chdir('/tmp/clone/op')\n"
        "print(lite(sources=['more/../more/extra.cpp', './lite.cpp'], extra_include_paths=['../include']).__file__)\n"
        "shutil.rmtree('/tmp/clone')\n"
    )
    assert printed == f"{INDEX}/lite/lite.so\n"


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_a_folder_that_cannot_be_written_does_not_matter(inside: Inside, way: str):
    argument, variable = (
        ("build_directory='/opt/flat'", {})
        if way == "argument"
        else ("", {"TORCH_EXTENSIONS_DIR": "/opt/flat"})
    )
    printed = inside(f"print(lite({argument}).__file__, os.path.exists('/opt/flat'))", **variable)
    assert printed == f"{INDEX}/lite/lite.so False\n"


def test_sources_copied_to_the_build_directory_still_find_their_extension(inside: Inside):
    """As StyleGAN3 does it, with the GPU's name in the path; without a home, that folder is one of this node."""
    printed = inside(
        "import shutil\n"
        "place = cpp_extension._get_build_directory('lite', False) + '/digest-nvidia-a100'\n"
        f"shutil.copytree({CLONED!r}, place, copy_function=shutil.copyfile)\n"
        "sources = [f'{place}/op/{name}' for name in ('lite.cpp', 'more/extra.cpp')]\n"
        "print(place[:16], lite(sources=sources, build_directory=place).__file__)\n",
        HOME="/nowhere",
    )
    assert printed == f"/tmp/envbuilder- {INDEX}/lite/lite.so\n"


def test_a_python_without_torch_starts_within_a_millisecond_more(cpu: Built):
    script = "import os; os.system('/opt/env/bin/python -X importtime -c pass 2>&1 | grep envbuilder_start')"
    said = run("apptainer", "exec", cpu.sif, "python", "-c", f"for _ in range(10): {script}")
    assert min(int(line.split("|")[1]) for line in said.splitlines()) < 1000


@pytest.mark.alone
def test_eight_processes_load_at_once_in_a_moment_and_write_nothing(inside: Inside, slack: int):
    printed = inside("together(8, lambda: lite().answer() + inlined().answer())")
    answers = [json.loads(line) for line in printed.splitlines()]
    assert [answer for answer, _ in answers] == ["84"] * 8
    assert min(seconds for _, seconds in answers) < 2 * 0.05 * slack  # two modules
    assert list(inside.tmp.iterdir()) == []


# A change of the project at /tmp/mine and a call; what is told.
DIFFERENCES = {
    ("append('op/lite.cpp')", "lite()"): "`/tmp/mine/op/lite.cpp` differs",
    ("append('include/shape.h')", "lite()"): "`/tmp/mine/include/shape.h` differs",
    ("os.unlink('/tmp/mine/include/shape.h')", "lite()"): "`/tmp/mine/include/shape.h` is not there",
    ("FLAGS[0] = '-DFACTOR=2'", "lite()"): "`extra_cflags` had `-DFACTOR=3` and now has `-DFACTOR=2`",
    ("pass", "inlined('int x;')"): "`cpp_sources` differs",
    ("pass", "lite(sources='/tmp/mine/op/lite.cpp')"): "it had a source `more/extra.cpp`",
    ("pass", "lite(sources=[f'/tmp/mine/op/{x}' for x in ('lite.cpp', 'more/extra.cpp', 'tool.cpp')])"):
        "it did not have the source `/tmp/mine/op/tool.cpp`",
}  # fmt: skip
DIFFER = """
import shutil
import calls
calls.HERE = Path("/tmp/mine")
def append(name): open(calls.HERE / name, "a").write("//")
for change, call in {cases}:
    shutil.copytree({cloned!r}, calls.HERE)
    FLAGS[0] = "-DFACTOR=3"
    exec(change)
    try: eval(call)
    except RuntimeError as error: print(json.dumps(f"{{type(error).__name__}}: {{error}}"))
    shutil.rmtree(calls.HERE)
"""


def test_every_difference_is_told_also_where_a_project_hides_errors(inside: Inside):
    ended = inside.attempt(DIFFER.format(cases=list(DIFFERENCES), cloned=CLONED))
    raised = [json.loads(line) for line in ended.stdout.splitlines()]
    heads = [f"the image's extension `{'inlined' if 'inlined' in call else 'lite'}` was compiled from something else: {what}"
             for (_, call), what in DIFFERENCES.items()]  # fmt: skip
    wanted = [f"ExtensionError: {head}" for head in heads]
    assert [text.splitlines()[0] for text in raised] == wanted, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if "else:" in line]
    assert lines == [f"envbuilder: {head}" for head in heads]
    assert all("hint: `envbuilder lock cpu && envbuilder build cpu` where" in text for text in raised)


def test_the_hook_can_be_switched_off(inside: Inside):
    """torch's own words: nothing is on PATH."""
    script = "try: lite(build_directory='/tmp/off')\nexcept RuntimeError as error: print(error)"
    for off in ("ENVBUILDER_EXTENSIONS", "ENVBUILDER_START"):
        ended = inside.attempt(f"os.makedirs('/tmp/off', exist_ok=True)\n{script}", **{off: "off"})
        assert ended.stdout.startswith("Ninja is required"), ended.stderr
        assert "envbuilder" not in ended.stderr


def test_it_tells_what_it_does(inside: Inside):
    ended = inside.attempt("lite()", ENVBUILDER_DEBUG="1")
    assert f"envbuilder: `lite` is `{INDEX}/lite/lite.so`\n" in ended.stderr


def test_a_gpu_that_the_code_is_not_for_is_named(inside: Inside):
    """Before CUDA has started: a process that forks later must not have started it."""
    entries = json.loads((inside.made / "index.json").read_text())["extensions"]
    for_a100 = changed_index(inside, extensions=[entry | {"targets": ["sm_80"]} for entry in entries])
    ended = inside.attempt(
        "def with_gpus(capabilities, chosen=None):\n"
        "    os.environ['CAPABILITIES'] = capabilities\n"
        "    if chosen is not None: os.environ['CUDA_VISIBLE_DEVICES'] = chosen\n"
        "    return lite().answer()\n"
        "for gpus in [('80',), ('86', '0'), ('90',), ('80' + '75',), ('90', ''), ('90' + '80', 'GPU 80')]:\n"
        "    together(1, lambda: with_gpus(*gpus))\n",
        f"{inside.made}:{INDEX}:ro", for_a100, LD_LIBRARY_PATH=f"{INDEX}/driver",
    )  # fmt: skip
    answers = [json.loads(line)[0] for line in ended.stdout.splitlines()]
    what = "the extension `lite` holds code for sm_80, which"
    assert answers[:2] + answers[3:] == ["42"] * 5, ended.stderr
    assert answers[2].startswith(f"ExtensionError: {what} GPU 90 (sm_90) cannot run\nhint: ")
    warnings = [line for line in ended.stderr.splitlines() if what in line]
    assert warnings == [
        f"envbuilder: {what} GPU 90 (sm_90) cannot run",
        f"envbuilder: {what} GPU 75 (sm_75) cannot run; on that GPU its kernels will fail with `no kernel image is available`",
    ]


# What the image does not hold


def test_one_process_compiles_and_the_others_wait(inside: Inside):
    said = inside("counted()\ntogether(4, lambda: unknown().answer())\nprint(compiles())")
    *answers, count = said.splitlines()
    assert ([json.loads(line)[0] for line in answers], count) == (["42"] * 4, "1")


def test_the_others_learn_of_a_failure_and_do_not_try_one_after_the_other(inside: Inside):
    ended = inside.attempt("counted()\ntogether(4, lambda: unknown('broken'))\nprint(compiles())")
    *raised, count = ended.stdout.splitlines()
    assert sorted(json.loads(line)[0].partition("'")[0].partition(" '")[0][:60] for line in raised) == [
        *["OtherProcessError: another process tried to compile it and f"] * 3,
        "RuntimeError: Error building extension ",
    ]
    assert count == "1"
    assert (
        "`broken` could not be compiled or loaded here:\n  /home/user/cloned/op/broken.cpp:2:" in ended.stderr
    )
    assert "no_such_thing" in ended.stderr


def test_a_killed_compile_holds_up_nobody(inside: Inside):
    """Its compiler may live on and write: the next one compiles in another folder."""
    printed = inside(
        "import signal\n"
        "counted(wait=5)\n"
        "child = os.fork()\n"
        "if not child: unknown()\n"
        "while not os.path.exists('/tmp/commands'): time.sleep(0.05)\n"
        "os.kill(child, signal.SIGKILL); os.waitpid(child, 0)\n"
        "counted()\n"
        "print(unknown().__file__)\n"
    )
    assert printed.endswith("-1/unknown.so\n")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        ("open('/tmp/mine/lock', 'w')", "`/tmp/mine/lock` is there: a killed process left it"),
        ("os.chmod('/tmp/mine', 0o777)", "everybody can write in `/tmp/mine`"),
        ("os.chmod('/tmp/mine', 0o555)", "`/tmp/mine` cannot be written"),
    ],
)
def test_a_folder_that_will_not_do_is_named_and_another_is_used(inside: Inside, prepare: str, reason: str):
    script = f"os.mkdir('/tmp/mine')\n{prepare}\nprint(unknown(build_directory='/tmp/mine').__file__)"
    ended = inside.attempt(script)
    assert ended.stdout.startswith("/tmp/envbuilder-"), ended.stderr
    assert f"envbuilder: {reason}" in ended.stderr


def test_a_folder_that_will_do_is_used(inside: Inside):
    """As a job's own: everything is as torch does it."""
    ended = inside.attempt("print(unknown().__file__)", TORCH_EXTENSIONS_DIR="/tmp/flat")
    assert (ended.stdout, ended.stderr) == ("/tmp/flat/unknown/unknown.so\n", "")


def test_a_folder_that_others_could_have_made_is_not_used(inside: Inside):
    script = "os.makedirs(f'/tmp/open/envbuilder-{os.geteuid()}')\nprint(unknown().__file__)"
    assert inside(script, TMPDIR="/tmp/open").startswith("/tmp/envbuilder-")


def test_an_edited_source_is_compiled_if_so_wished_also_when_its_time_is_old(inside: Inside):
    printed = inside(
        "import shutil, calls\n"
        "shutil.copytree(calls.HERE, '/tmp/mine'); calls.HERE = Path('/tmp/mine')\n"
        "for factor in 2, 1:\n"
        "    source = Path('/tmp/mine/op/lite.cpp')\n"
        "    source.write_text(source.read_text().replace('FACTOR)', f'FACTOR / {factor})'))\n"
        "    os.utime(source, (1, 1))\n"
        "    together(1, lambda: lite().answer())\n"
        "    source.write_text(source.read_text().replace(f'FACTOR / {factor})', 'FACTOR)'))\n"
        "    if factor == 2: source.write_text(source.read_text() + '//')\n",
        ENVBUILDER_EXTENSIONS="build",
    )
    assert [json.loads(line)[0] for line in printed.splitlines()] == ["21", "42"]


def test_an_edited_extension_that_is_compiled_is_loaded_without_a_program(inside: Inside):
    printed = inside(
        "import shutil, calls\n"
        "from envbuilder_extensions import compiling\n"
        "shutil.copytree(calls.HERE, '/tmp/mine'); calls.HERE = Path('/tmp/mine')\n"
        "source = Path('/tmp/mine/op/lite.cpp')\n"
        "source.write_text(source.read_text() + '//')\n"
        "for path in Path('/tmp/mine').rglob('*'): os.utime(path, (1, 1))\n"
        "together(1, lambda: lite().answer())\n"
        "compiling.TOOLS = '/nowhere'\n"
        "os.environ['PATH'] = '/nowhere'\n"
        "together(1, lambda: lite().answer())\n",
        ENVBUILDER_EXTENSIONS="build",
    )
    assert [json.loads(line)[0] for line in printed.splitlines()] == ["42", "42"]


def test_a_cuda_source_without_a_cuda_compiler_is_told(inside: Inside):
    ended = inside.attempt("Path('/tmp/gpu.cu').touch()\ncpp_extension.load('gpu', '/tmp/gpu.cu')")
    reason = "`gpu` could not be compiled or loaded here: the CUDA compiler was not found"
    assert f"envbuilder: {reason}" in ended.stderr
    assert "OSError: CUDA_HOME environment variable is not set" in ended.stderr


def changed_index(inside: Inside, **change: object) -> str:
    """The bind of an index that differs."""
    index = json.loads((inside.made / "index.json").read_text())
    path = inside.tmp / "index.json"
    path.write_text(json.dumps(index | change))
    return f"{path}:{INDEX}/index.json:ro"


def test_the_extensions_of_another_torch_are_not_loaded(inside: Inside):
    ended = inside.attempt("print(plain())", f"{inside.made}:{INDEX}:ro", changed_index(inside, torch="1.0"))
    assert ended.stdout.startswith("/tmp/envbuilder-"), ended.stderr
    reason = "the image's extensions are for torch 1.0, and 2.13.0+cpu runs here\n"
    assert f"envbuilder: torch compiles `plain`: {reason}" in ended.stderr


def test_without_extensions_or_a_safe_folder_torch_compiles_as_it_does_by_itself(inside: Inside):
    (inside.tmp / "none").mkdir()
    script = (
        "os.mkdir('/tmp/mine')\n"
        "print(unknown(build_directory='/tmp/mine').__file__, flush=True)\n"
        "os.chmod(compiling.private_folder(), 0o755)\n"
        "os.environ.pop('TMPDIR', None)\n"
        "together(1, lambda: unknown(build_directory='/tmp/mine').__file__)\n"
    )
    ended = inside.attempt(
        "from envbuilder_extensions import compiling\n" + script,
        f"{inside.tmp}/none:{INDEX}:ro",
        PATH="/usr/local/bin:/usr/bin:/bin",
    )
    assert ended.stdout.splitlines()[0] == "/tmp/mine/unknown.so", ended.stderr
    assert json.loads(ended.stdout.splitlines()[1])[0] == "/tmp/mine/unknown.so"
    assert "there is no safe folder: `/tmp/envbuilder-" in ended.stderr


def test_at_the_desk_an_edit_is_compiled(inside: Inside, cpu: Built):
    """A container of the Docker image can be written, and then `build` is the policy."""
    mounts = {str(inside.calls): "/calls/calls.py", str(inside.made): INDEX, str(inside.code): CLONED}
    binds = (word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}"))
    script = "from calls import *\nFLAGS[0] = '-DFACTOR=1'\nprint(lite().answer(), lite().__file__[:16])"
    command = (
        "docker", "run", "--rm", "--user", f"{NOBODY}:{NOBODY}", *binds, "--env", "PYTHONPATH=/calls",
        cpu.image,
    )  # fmt: skip
    assert run(*command, "python", "-c", script) == "14 /tmp/envbuilder-\n"
