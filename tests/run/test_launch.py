"""From a options to a script: profiles, jobs and whole texts, which shellcheck reads as well."""

import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder import __version__, cli
from envbuilder.core.cache import Sha256
from envbuilder.core.errors import CommandError, LaunchError, ToolError, UsageError
from envbuilder.core.processor import PROCESSORS
from envbuilder.diagnose import as_text, diagnose
from envbuilder.run.launch import start
from envbuilder.run.launch.array import ArrayBuild, make_array, read_results
from envbuilder.run.launch.job import (
    Environment,
    LaunchJob,
    LaunchOptions,
    local_paths,
    make_job,
    words_for_launcher,
    words_for_rank,
)
from envbuilder.run.launch.prepare import file_state
from envbuilder.run.launch.script import PARTS, quoted_path, render, render_enter
from envbuilder.run.launch.site import Site, SlurmSite, SshSite, find_site, find_slurm_site, load_site
from envbuilder.run.launch.start import check_job, check_time, wait_for_end
from tests.support.runner import FakeRunner

ROOT = Path(__file__).parents[2]
CPU = Environment(
    name="cpu", location="/shared/env/cpu.sif", size=395354112, sha256=Sha256("ab" * 32), torch="2.13.0", cuda="",
)  # fmt: skip
A100 = replace(
    CPU,
    name="a100",
    location="/shared/my env/a100.sif",
    torch="2.6.0",
    cuda="12.4",
)
WISH = LaunchOptions(
    name="cpu", program=("train.py", "--text", "it's $HOME"), where="slurm", folder=Path("/home/me/project/src"),
    logs=Path("logs"), output=Path("build"), grace=120, smoke=False,
)  # fmt: skip
PLAIN = Site()
CLUSTER = Site(
    modules=("apptainer/1.3",), binds=("$PROJECT/data set", "/scratch:/scratch:ro"), scratch="$SCRATCH", master_suffix="i",
    env=(("NCCL_DEBUG", "WARN"),),
    slurm=SlurmSite(partition="gpu", account="me", time="02:00:00", gpu_type="a100", cpus_per_rank=8, options=("--exclusive",)),
)  # fmt: skip
HOSTS = Site(ssh=SshSite(hosts=("me@n1", "n2", "n3"), options=("-p", "2222")), node_scratch="/local")


def job(
    options: LaunchOptions = WISH, environment: Environment = CPU, site: Site = PLAIN, **changes: object
) -> LaunchJob:
    return make_job(replace(options, **changes), environment, site, Path("/home/me/project"))


JOBS = {  # the first one's golden is a whole script
    "launch-slurm-torchrun.sh": job(environment=A100, site=CLUSTER, nodes=2, gpus=4),
    "launch-slurm-tasks.sh": job(environment=A100, site=CLUSTER, nodes=2, gpus=4, shape="tasks"),
    "launch-ssh.sh": job(where="ssh", site=HOSTS, nodes=2, ranks=2, local_copy=True),
    "launch-pdsh.sh": job(where="ssh", site=HOSTS, nodes=2, ranks=2, pdsh=True),
    "launch-local-image.sh": job(
        environment=replace(A100, location="envbuilder/a100:latest", size=0, sha256="", image_id="sha256:12"),
        where="local",
        nodes=1,
        gpus=2,
    ),
    "launch-local.sh": job(where="local", nodes=1, ranks=2, smoke=True, program=()),
    "launch-slurm-old-torch.sh": job(environment=replace(A100, torch="1.9.1"), nodes=2, gpus=1),
    "launch-slurm-torch-1.sh": job(environment=replace(A100, torch="1.13.1"), nodes=2, gpus=1),
}


RECIPES = (Path("/home/me/recipes/cpu.yaml"), Path("/home/me/my recipes/a100.yaml"))
ARRAY = make_array(
    RECIPES, ("/home/me/.venv/bin/python", "-m", "envbuilder", "build", "--output", "/home/me/a folder"),
    cache=Path("/scratch/me/cache"), folder=Path("/home/me"), output=Path("/home/me/a folder"), site=CLUSTER, at_once=4,
)  # fmt: skip
TEXTS = {name: render(made) for name, made in JOBS.items()} | {"launch-array.sh": ARRAY.text}


# The nearest script of each other one, of whose golden only the difference is kept.
NEAREST = dict.fromkeys(TEXTS, "launch-slurm-torchrun.sh") | {
    "launch-slurm-torchrun.sh": "", "launch-array.sh": "", "launch-pdsh.sh": "launch-ssh.sh",
    "launch-local.sh": "launch-ssh.sh", "launch-local-image.sh": "launch-local.sh",
}  # fmt: skip


@pytest.mark.parametrize(("name", "nearest"), NEAREST.items())
def test_the_whole_text_of_a_script(name, nearest, golden):
    text = TEXTS[name].replace(f"envbuilder {__version__}", "envbuilder VERSION")
    before = TEXTS.get(nearest, "").replace(f"envbuilder {__version__}", "envbuilder VERSION")
    golden(name.replace(".sh", ".diff") if nearest else name, text, before)


@pytest.mark.programs
@pytest.mark.parametrize("name", TEXTS)
def test_shellcheck_finds_nothing_in_a_script(name, tmp_path):
    script = tmp_path / name
    script.write_text(TEXTS[name])
    checked = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
    assert checked.stdout == ""


@pytest.mark.programs
def test_every_value_reaches_bash_as_it_was_given(tmp_path):
    nasty = job(
        environment=replace(A100, location="/a b/$(touch x)'\".sif"), program=("a;b.py", "new\nline", "$HOME", "`id`", "*"), gpus=1,
    )  # fmt: skip
    text = render(nasty)
    settings = text[text.index("\nenvironment=") : text.index("\nsay()")]
    script = settings + '\nprintf "%s\\0" "$environment" "${program[@]}"'
    said = subprocess.run(
        ["bash", "-euc", script], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    assert said.split("\0")[:-1] == [nasty.environment.location, *words_for_launcher(nasty.program)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.programs
def test_a_bind_with_a_variable_that_is_not_set_is_empty():
    text = render(JOBS["launch-slurm-torchrun.sh"])
    line = next(line for line in text.splitlines() if line.startswith("binds="))
    show = f'{line}; printf "%s|" "${{binds[@]}}"'
    env = {"PATH": "/usr/bin:/bin", "PROJECT": "/p"}
    said = subprocess.run(["bash", "-euc", show], capture_output=True, text=True, check=True, env=env)
    assert said.stdout == "/p/data set|/scratch:/scratch:ro||"


def options(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_torchrun_is_one_task_with_all_cores_of_a_node():
    head = options(render(JOBS["launch-slurm-torchrun.sh"]))
    assert {"--ntasks-per-node=1", "--cpus-per-task=32", "--gpus-per-node=a100:4"} <= set(head)


def test_tasks_are_one_a_rank_that_see_each_others_gpus():
    text = render(JOBS["launch-slurm-tasks.sh"])
    assert {"--ntasks-per-node=4", "--cpus-per-task=8", "--gpus-per-node=a100:4"} <= set(options(text))
    assert "--gpu-bind=none" in text
    assert "--gpus-per-task" not in text


@pytest.mark.parametrize(
    ("flag", "wanted"), [("gres", ["--gres=gpu:2"]), ("gpus-per-node", ["--gpus-per-node=2"]), ("none", [])]
)
def test_each_site_asks_for_gpus_in_its_way(flag, wanted):
    text = render(job(environment=A100, site=Site(slurm=SlurmSite(gpu_flag=flag)), gpus=2))
    assert [one for one in options(text) if "gpu" in one] == wanted


@pytest.mark.parametrize(
    ("program", "launcher", "rank"),
    [
        (("train.py", "-x"), ("train.py", "-x"), ("python", "train.py", "-x")),
        (("python", "train.py"), ("train.py",), ("python", "train.py")),
        (
            ("python", "-u", "train.py"),
            ("--no_python", "python", "-u", "train.py"),
            ("python", "-u", "train.py"),
        ),
        (("-m", "pkg", "x"), ("-m", "pkg", "x"), ("python", "-m", "pkg", "x")),
        (("./run", "a b"), ("--no_python", "./run", "a b"), ("./run", "a b")),
    ],
)
def test_a_program_is_given_as_its_launcher_takes_it(program, launcher, rank):
    assert (words_for_launcher(program), words_for_rank(program)) == (launcher, rank)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"program": ()}, "there is no program to launch"),
        ({"gpus": 2}, "`cpu` has no CUDA"),
        ({"shape": "mpi"}, "`--shape` takes torchrun or tasks, found `mpi`"),
        ({"where": "ssh"}, "no host is named"),
        ({"where": "ssh", "hosts": ("n1",), "nodes": 2}, "the job needs 2 nodes, but 1 hosts are named"),
        ({"smoke": True}, "`--smoke` launches no program"),
        (
            {"program": ("python", "-m", "torch.distributed.run", "a.py")},
            "`torch.distributed.run` starts ranks",
        ),
    ],
)
def test_a_job_that_cannot_be_is_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        job(**changes)


@pytest.mark.parametrize(
    "typed",
    [
        "torchrun --nproc_per_node=2 train.py --fast",
        "python -m torch.distributed.run train.py --fast",
        "/opt/env/bin/accelerate launch train.py --fast",
        "deepspeed train.py --fast",
        "srun python train.py --fast",
    ],
)
def test_a_second_launcher_is_refused_with_the_command_without_it(typed: str):
    """torchrun in each rank would train as many models as there are ranks, and end well."""
    with pytest.raises(UsageError, match="starts ranks, and so does `launch`") as caught:
        job(program=tuple(typed.split()))
    assert caught.value.hint.startswith("leave it out: `-- train.py --fast`")
    assert job(program=("accelerate", "config")).program == ("accelerate", "config")


def test_a_written_script_has_a_folder_for_its_log(tmp_path):
    """Slurm does not make one, and fails without a word."""
    start.save_script(tmp_path / "job.sh", start.script_of(job(folder=tmp_path)))
    assert (tmp_path / "logs").is_dir()


def test_what_was_typed_comes_before_the_profile():
    typed = SlurmSite(partition="debug", qos="short", time="5", options=("--constraint=h100", "--mem=0"))
    head = options(render(job(site=CLUSTER, slurm=typed)))
    wanted = {"--partition=debug", "--qos=short", "--time=5", "--account=me", "--exclusive", "--mem=0"}
    assert wanted | {"--constraint=h100"} <= set(head)
    assert "--account=mine" in options(render(job(site=CLUSTER, slurm=SlurmSite(account="mine"))))


@pytest.mark.parametrize("option", ["constraint=h100", "--mem 0", "--x=1\n#SBATCH --y"])
def test_what_is_no_option_of_sbatch_stays_out_of_the_script(option):
    with pytest.raises(UsageError, match="`--sbatch` takes an option such as"):
        job(slurm=SlurmSite(options=(option,)))


@pytest.mark.parametrize("key", ["partition", "account", "qos", "time"])
@pytest.mark.parametrize("text", ["a b", "x\n#SBATCH --foo", "-x"])
def test_what_was_typed_is_as_strict_as_the_profile(key, text):
    with pytest.raises(UsageError, match=f"`--{key}` takes a"):
        job(slurm=SlurmSite(**{key: text}))


@pytest.mark.parametrize("time", ["5", "120:00", "1-12", "100:00:00", "UNLIMITED"])
def test_every_time_that_slurm_takes_is_taken(time):
    assert f"--time={time}" in options(render(job(slurm=SlurmSite(time=time))))


@pytest.mark.parametrize("where", ["slurm", "local"])
def test_a_name_cannot_begin_another_line_of_a_script(where):
    with pytest.raises(UsageError, match="of one line without control characters"):
        render(job(environment=replace(CPU, name="x\ntouch y"), where=where))


@pytest.mark.parametrize("host", ["-oProxyCommand=touch${IFS}x", "a b", "n1;id", "a\nb"])
@pytest.mark.parametrize("pdsh", [False, True])
def test_a_host_is_no_option_and_no_command(host, pdsh):
    with pytest.raises(UsageError, match="`--hosts` takes a host such as"):
        job(where="ssh", hosts=("n1", host), pdsh=pdsh)


@pytest.mark.programs
def test_ssh_takes_what_stands_for_the_host_for_one(tmp_path):
    """Whatever wrote the script: of a word that looks like an option `ssh` must not run the command in it."""
    script = (PARTS / "ssh.sh").read_text(encoding="utf-8")
    settings = f"master_suffix= ssh_options=(-F none) hosts=('-oProxyCommand=touch {tmp_path}/ran')"
    subprocess.run(
        ["bash", "-uc", f'{settings}\n{script}\nreach "${{hosts[0]}}" </dev/null'],
        capture_output=True,
        check=False,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.programs
def test_a_machine_that_does_not_answer_ends_as_a_job_that_could_not_be_started(tmp_path):
    nobody = Site(ssh=SshSite(hosts=("127.0.0.1",), options=("-F", "none", "-p", "1")))
    script = tmp_path / "job.sh"
    script.write_text(render(job(where="ssh", site=nobody, folder=tmp_path)))
    ended = subprocess.run(["bash", script], capture_output=True, text=True, check=False)
    assert ended.returncode == LaunchError.exit_code, ended.stderr
    assert "no rank was started" in ended.stderr


def test_without_a_word_there_is_a_rank_a_gpu_and_a_node_a_host():
    assert (job(environment=A100).gpus, job(environment=A100, gpus=4).ranks, job().gpus) == (1, 4, 0)
    assert job(where="ssh", site=HOSTS).nodes == 3


# ---- profiles


@pytest.mark.parametrize("path", sorted((ROOT / "sites").rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_example_profiles_are_read(path):
    assert load_site(path) != Site()


def test_the_profile_of_the_page_is_the_example(tmp_path):
    page = (ROOT / "docs/how-to/launch.md").read_text()
    path = tmp_path / "x.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert load_site(path) == load_site(ROOT / "sites/slurm-generic.yaml")


@pytest.mark.parametrize(
    ("time", "is_short"),
    [("2", True), ("1:59", True), ("0-0:02", True), ("2:01", False), ("1-0", False), ("UNLIMITED", False)],
)
def test_a_time_limit_within_the_grace_is_said(time, is_short):
    one = job(site=Site(slurm=SlurmSite(time=time)))
    assert bool(check_time(one)) == is_short


@pytest.mark.parametrize(("time", "is_long"), [("2:00:00", True), ("1:00:00", False), ("", False)])
def test_more_time_than_the_partition_gives_is_refused(time, is_long):
    runner = FakeRunner({"scontrol": "PartitionName=main Default=YES MaxTime=01:00:00 TotalNodes=2\n"})
    one = job(slurm=SlurmSite(time=time))
    if is_long:
        with pytest.raises(
            UsageError, match="2:00:00, and the partition `main` gives a job 01:00:00 at most"
        ):
            check_job(one, runner)
    else:
        assert check_job(one, runner) == ""


def test_a_profile_says_every_mistake_with_its_place(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "bind: [/scratch]\nscratch: scratch\nslurm: {partitoin: gpu, gpu_flag: gpu-per-node, time: 60, options: [exclusive]}\nenv: {1x: a}\n"
    )
    with pytest.raises(UsageError) as caught:
        load_site(path)
    said = [f"{finding} {finding.hint}" for finding in caught.value.findings]
    assert [one.partition(": ")[0].removeprefix(f"{path}:") for one in said] == [
        "1:1", "2:10", "3:9", "3:35", "3:55", "3:69", "4:7",
    ]  # fmt: skip
    assert "did you mean `binds`?" in said[0]
    assert "did you mean `partition`?" in said[2]
    assert "did you mean `gpus-per-node`?" in said[3]


def test_a_profile_is_found_by_its_name_or_the_nearest_is_told(tmp_path):
    (tmp_path / "juwels.yaml").write_text("master_suffix: i\n")
    assert find_site("juwels", tmp_path).master_suffix == "i"
    assert find_site(str(tmp_path / "juwels.yaml")).master_suffix == "i"
    assert find_site("") == Site()
    with pytest.raises(UsageError, match="there is no site profile") as caught:
        find_site("juwel", tmp_path)
    assert "did you mean `juwels`?" in caught.value.hint


@pytest.mark.parametrize(
    "words", [["launch", "slurm", "a100", "--dry-run"], ["build", "a100", "--on", "slurm", "--dry-run"]]
)
def test_a_site_with_another_scheduler_gets_no_script_for_slurm(words, clean_environment, capsys):
    profile = "sites/examples/miyabi.yaml"
    assert cli.run([*words, "--profile", profile]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        f"the site profile `{profile}` says `scheduler: pbs`, and envbuilder writes jobs for Slurm alone"
        in err
    )
    if words[0] == "launch":
        assert f"`envbuilder launch local a100 --profile {profile} -- PROGRAM` runs on its node" in err
        assert (
            f"`envbuilder launch ssh a100 --profile {profile} --hosts NODE,NODE -- PROGRAM` on several" in err
        )
    else:
        assert "without `--on slurm` this machine builds them" in err


def test_a_profile_of_any_scheduler_serves_inside_a_job(tmp_path):
    (tmp_path / "pbs.yaml").write_text("scheduler: pbs\nbinds: [/work]\n")
    assert find_site("pbs", tmp_path).binds == ("/work",)
    assert find_slurm_site("", hint="") == Site()


def test_binds_are_those_that_this_machine_has(tmp_path):
    (tmp_path / "data").mkdir()
    site = Site(binds=("$BASE/data:/data:ro", "$UNSET/x", "/nowhere"), scratch="$BASE")
    assert site.present_binds({"BASE": str(tmp_path)}) == (f"{tmp_path}/data:/data:ro", str(tmp_path))


@pytest.mark.programs
def test_a_variable_may_stand_anywhere_in_a_path(tmp_path):
    (tmp_path / "of/me").mkdir(parents=True)
    (tmp_path / "x.yaml").write_text(
        f"scratch: {tmp_path}/of/$ME\nbinds: [$BASE/of/$ME:/mine, $BASE/$UNSET]\n"
    )
    site = load_site(tmp_path / "x.yaml")
    known = {"BASE": str(tmp_path), "ME": "me"}
    assert site.present_binds(known) == (f"{tmp_path}/of/me:/mine", f"{tmp_path}/of/me")
    script = f"printf '%s\\n' {' '.join(map(quoted_path, site.all_binds))}"
    said = subprocess.run(["bash", "-uc", script], env=known, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [f"{tmp_path}/of/me:/mine", "", f"{tmp_path}/of/me"]
    (tmp_path / "x.yaml").write_text("scratch: /scratch/${USER}\n")
    with pytest.raises(UsageError) as caught:
        load_site(tmp_path / "x.yaml")
    assert caught.value.findings[0].hint == "write $USER, not ${USER} or ~"


# Profiles in the manner of five sites (docs/how-to/launch-sites.md), and what their guides want to see in a script.
FIVE_SITES = {
    "LUMI": (
        ("modules: [LUMI, bindings]\nbinds: ['$SCRATCH/env.sqsh:/user-software:image-src=/']\n"
         "slurm: {account: project_1, cpus_per_rank: 7, options: [--exclusive]}"),
        "torchrun",
        ["--gpus-per-node=4", "--cpus-per-task=28", "--ntasks-per-node=1", "--exclusive", "--account=project_1"],
        ['binds=("${SCRATCH:+$SCRATCH/env.sqsh:/user-software:image-src=/}")', "modules=(LUMI bindings)"],
    ),
    "CSC": (
        ("binds: [/users, /projappl, /scratch]\nscratch: /scratch/project_1\nnode_scratch: $LOCAL_SCRATCH\n"
         "slurm: {gpu_flag: gres, gpu_type: a100, cpus_per_rank: 32, time: '1:00:00'}"),
        "torchrun",
        ["--gres=gpu:a100:4", "--ntasks-per-node=1", "--time=1:00:00"],
        ["binds=(/users /projappl /scratch /scratch/project_1)", 'node_scratch="${LOCAL_SCRATCH:+$LOCAL_SCRATCH}"'],
    ),
    "Princeton": (
        "apptainer: singularity\nslurm: {gpu_flag: gres, cpus_per_rank: 8}",
        "tasks",
        ["--gres=gpu:4", "--ntasks-per-node=4", "--cpus-per-task=8"],
        ["apptainer=singularity", "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"],
    ),
    "NERSC": (
        "modules: [nccl-plugin]\nslurm: {account: m1_g, qos: regular, cpus_per_rank: 32, options: [--constraint=gpu]}",
        "tasks",
        ["--qos=regular", "--constraint=gpu", "--gpus-per-node=4"],
        ["modules=(nccl-plugin)", "--gpu-bind=none"],
    ),
    "JSC": (
        "master_suffix: i\nslurm: {account: me, partition: booster, gpu_flag: gres, cpus_per_rank: 12}",
        "torchrun",
        ["--gres=gpu:4", "--partition=booster", "--cpus-per-task=48"],
        ["master_suffix=i", "export SRUN_CPUS_PER_TASK=", '--local_addr="$(this_node)"'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FIVE_SITES)
def test_what_a_site_recommends_is_written(tmp_path, name):
    profile, shape, head, body = FIVE_SITES[name]
    path = tmp_path / "site.yaml"
    path.write_text(profile)
    text = render(job(environment=A100, site=load_site(path), nodes=2, gpus=4, shape=shape))
    assert set(head) <= set(options(text))
    for line in [*body, 'scontrol show hostnames "$SLURM_JOB_NODELIST"', "--kill-on-bad-exit=1"]:
        assert line in text


# ---- submitting


class Slurm(FakeRunner):
    """Takes a job, or refuses it."""

    def __init__(self, refusal: str = "", answer: str = "77;cluster\n") -> None:
        super().__init__({"sbatch": answer})
        self._refusal = refusal

    def run(self, command, *, on_line=None):
        said = super().run(command, on_line=on_line)
        if self._refusal:
            raise CommandError(
                f"could not submit the job to Slurm: `sbatch` ended with exit code 1\n{self._refusal}"
            )
        return said


def submit(runner: FakeRunner, folder: Path) -> start.Started:
    told: list[str] = []
    made = job(folder=folder, site=Site(slurm=SlurmSite(cpus_per_rank=1)))
    return start.submit(start.script_of(made), runner, wait=False, report=told.append)


def test_a_submitted_script_is_kept_under_the_number_of_its_job(tmp_path):
    runner = Slurm()
    started = submit(runner, tmp_path)
    log = f"--output={tmp_path}/logs/%x-%j.log"
    assert [command.argv[:3] for command in runner.commands] == [("sbatch", "--parsable", log)]
    assert (started.number, started.code) == ("77", 0)
    assert started.script == tmp_path / "logs/cpu-77.sh"
    assert started.script.read_text().startswith("#!/usr/bin/env bash\n")
    assert started.script.stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("option", "log", "claims"),
    [
        ("mine.log", "mine.log", True),
        ("/logs/%x.%j.out", "/logs/cpu.77.out", True),
        ("mine-%N.log", "mine-%N.log", False),
    ],
)
def test_the_log_of_a_job_is_the_one_that_its_options_name(tmp_path, option, log, claims):
    runner = Slurm()
    made = start.script_of(job(folder=tmp_path, slurm=SlurmSite(options=(f"--output={option}",))))
    started = start.submit(made, runner, wait=False, report=print)
    assert started.log == tmp_path / log
    assert ("it wrote nothing to" in replace(started, code=9).text()) is claims
    assert runner.commands[0].argv[2] == f"--output={option}"


@pytest.mark.parametrize(
    ("refusal", "hint"),
    [
        ("sbatch: error: invalid partition specified: nope", "sinfo"),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "what a node has",
        ),
        ("sbatch: error: Unable to contact slurm controller (connect failure)", "scontrol ping"),
    ],
)
def test_a_refused_job_says_where_to_look(tmp_path, refusal, hint):
    with pytest.raises(LaunchError, match="could not submit the job") as caught:
        submit(Slurm(refusal, answer=""), tmp_path)
    assert hint in caught.value.hint


def test_without_slurm_the_hint_is_another_machine(tmp_path):
    """What `scripts/setup` installs has no Slurm in it."""

    class Bare(FakeRunner):
        def run(self, command, **_):
            raise ToolError(
                f"could not {command.why}: `sbatch` is not installed", hint="`scripts/setup` installs it"
            )

    with pytest.raises(ToolError) as caught:
        submit(Bare(), tmp_path)
    assert "machine of the cluster" in caught.value.hint
    assert "scripts/setup" not in caught.value.hint


PARTITIONS = """\
PartitionName=main Default=YES MaxNodes=UNLIMITED Nodes=n[1-8] State=UP TotalCPUs=64 TotalNodes=8
PartitionName=big Default=NO MaxNodes=16 Nodes=n[1-32] State=UP TotalNodes=32
"""


@pytest.mark.parametrize(
    ("changes", "nodes", "hint"),
    [
        ({}, 9, "`--partition big` has as many"),
        ({"partition": "main"}, 9, "`--partition big` has as many"),
        ({"partition": "main,big"}, 17, "`--nodes 16`"),
    ],
)
def test_more_nodes_than_the_partition_gives_are_said_before_the_job_is_queued(changes, nodes, hint):
    runner = FakeRunner({"scontrol": PARTITIONS})
    slurm = SlurmSite(**changes)
    check_job(job(slurm=slurm, nodes=nodes - 1), runner)
    with pytest.raises(UsageError, match=f"asks for {nodes} nodes") as caught:
        check_job(job(slurm=slurm, nodes=nodes), runner)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "slurm",
    [SlurmSite(partition="nope"), SlurmSite(options=("--partition=big",))],
    ids=["unknown", "another"],
)
def test_what_slurm_must_judge_is_left_to_it(slurm):
    assert check_job(job(slurm=slurm, nodes=9), FakeRunner({"scontrol": PARTITIONS})) == ""


def test_a_job_without_gpus_in_an_environment_for_gpus_is_warned_of():
    runner = FakeRunner({"scontrol": PARTITIONS})
    assert "asks for none" in check_job(job(environment=A100, gpus=0), runner)
    assert check_job(job(environment=A100), runner) == check_job(job(), runner) == ""


class Queue(FakeRunner):
    """Gives one answer after the other about job 77; an empty one is an unknown job."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self._left = list(answers)

    def run(self, command, *, on_line=None):
        answer = self._left.pop(0)
        if "=" not in answer:
            raise CommandError(f"could not {command.why}: `scontrol` ended with exit code 1\n{answer}")
        return answer


@pytest.mark.parametrize(("end", "is_well"), [("COMPLETED", True), ("FAILED", False), ("TIMEOUT", False)])
def test_a_job_that_is_waited_for_says_why_it_waits(end, is_well):
    told: list[str] = []
    queue = Queue(
        "JobId=77 JobState=PENDING Reason=None", "JobId=77 JobState=PENDING Reason=Resources",
        "JobId=77 JobState=PENDING Reason=Resources", "slurm_load_jobs error: Unable to contact slurm controller",
        "JobId=77 JobState=PENDING Reason=QOSMaxJobsPerUserLimit", "JobId=77 JobState=RUNNING Reason=None",
        f"JobId=77 JobState={end} Reason=None",
    )  # fmt: skip
    assert wait_for_end("77", queue, told.append, lambda _: None) is is_well
    assert told == [
        "job 77 waits: its nodes are in use (Resources)",
        "job 77 is not known at the moment: slurm_load_jobs error: Unable to contact slurm controller",
        "job 77 waits: a limit of the QOS is reached (QOSMaxJobsPerUserLimit)",
        "job 77 runs",
    ]


def test_whoever_waits_learns_first_where_the_log_is_and_last_how_the_job_ended(tmp_path):
    told: list[str] = []
    runner = FakeRunner({"sbatch": "77\n", "scontrol": "JobId=77 JobState=COMPLETED Reason=None"})
    started = start.submit(start.script_of(job(folder=tmp_path)), runner, wait=True, report=told.append)
    log = tmp_path / "logs/cpu-77.log"
    assert told == [f"job 77 is submitted: log {log}"]
    assert started.text().startswith(f"job 77 has ended well: log {log}")


# The program, what is said of it before the job is queued, and in the repair. "" is nothing.
PROGRAMS = {
    "a.py b.py": ("", ""),
    "python a.py": ("", ""),
    "python -u a.py": ("", ""),
    "python -W ignore a.py": ("", ""),
    "python -c pass": ("", ""),
    "-m package": ("", ""),
    "/opt/x.py": ("", ""),
    "nvidia-smi": ("", ""),
    "bash good.sh": ("", ""),
    "bash -O globstar good.sh": ("", ""),
    "bash +e good.sh": ("", ""),
    "bash nccl-wrapper": ("", ""),
    "bash +e ./b.sh": ("there is no `./b.sh` in FOLDER, where the ranks start", "ls"),
    "./extracts-itself": ("", ""),
    "bash extracts-itself": ("", ""),
    "./node": ("", ""),
    "bash one-cr": ("", ""),
    "./good": ("", ""),
    "python package": ("", ""),
    "b.py": ("there is no `b.py` in FOLDER, where the ranks start", "ls"),
    "python3 -u b.py": ("there is no `b.py` in FOLDER, where the ranks start", "ls"),
    "./tool": ("there is no `./tool` in FOLDER, where the ranks start", "ls"),
    "good.sh": ("`good.sh` is looked for in the PATH of the environment", "`./good.sh`"),
    "./mixed": ("", ""),
    "./crlf": ("`./crlf` has Windows line endings (CRLF) and would not start", "sed -i 's/\\r$//' ./crlf"),
    "bash crlf": ("`crlf` has Windows line endings (CRLF) and would not start", "sed"),
    "./good.sh": ("`./good.sh` may not be executed", "chmod +x ./good.sh"),
    "./no-shebang": (
        "`./no-shebang` has no first line that names its interpreter, such as `#!/usr/bin/env bash`",
        "`-- bash ./no-shebang`",
    ),
    "./package": ("`./package` is a folder, and a program is a file", "-m PACKAGE"),
    "python logs": ("`logs` is a folder, and a program is a file", "-m PACKAGE"),
    ".": ("`.` is a folder, and a program is a file", "-m PACKAGE"),
    "package": ("`package` is a folder here, and a program of that name is looked for in the environment", ""),
    "crlf.py": ("`crlf.py` has Windows line endings (CRLF): it starts through `python` alone", ""),
}  # fmt: skip


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    texts = {
        "a.py": "", "good.sh": "true\n", "good": "#!/bin/sh\n", "crlf": "#!/usr/bin/env bash\r\nexit\r\n", "no-shebang": "true\n", "mixed": "#!/usr/bin/env python\n'a'\r\n",
        "extracts-itself": "#!/bin/sh\nexit\n\0\r\n", "node": "#!/usr/bin/env node\nlet a\r\n", "one-cr": "true\nprintf 'a\r\n'\n",
        "crlf.py": "#!/usr/bin/env python\r\n", "package/__main__.py": "", "logs/a.log": "",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, newline="")
        (tmp_path / name).chmod(0o644 if name == "good.sh" else 0o755)
    return tmp_path


@pytest.mark.parametrize("line", PROGRAMS)
def test_a_program_that_cannot_start_is_named_before_the_job_is_queued(programs: Path, line: str):
    said, repair = PROGRAMS[line]
    wish = replace(WISH, program=tuple(line.split()), folder=programs)
    try:
        found = (start.check_program(wish), "")
    except UsageError as error:
        found = (error.message, error.hint)
    assert (found[0], repair in found[1]) == (said.replace("FOLDER", str(programs)), True)


@pytest.mark.programs
@pytest.mark.parametrize(
    "line", [line for line, (said, _) in PROGRAMS.items() if "Windows" in said or "may not" in said]
)
def test_the_kernel_and_bash_refuse_the_same_files(programs: Path, line: str):
    """The file of Python is one that Python alone starts."""
    words = f"./{line}" if line.endswith(".py") else line
    ended = subprocess.run(["sh", "-c", f"exec {words}"], cwd=programs, capture_output=True, check=False)
    assert ended.returncode != 0
    if line.endswith(".py"):
        subprocess.run([sys.executable, line], cwd=programs, check=True)


def test_packages_over_the_environment_are_said_and_with_strict_refused(tmp_path):
    (tmp_path / "train.py").write_text("")
    info = tmp_path / ".envbuilder/cpu/lib/python3.11/site-packages/einops-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: einops\nVersion: 1\n")
    (info / "REQUESTED").touch()
    wish, said = replace(WISH, where="local", folder=tmp_path, program=("train.py",)), list[str]()
    start.checked(job(), wish, said.append, starts=True)
    assert said[-1].startswith(
        "warning: the job does not see einops of `exec --writable`: `envbuilder add cpu"
    )
    with pytest.raises(UsageError, match="the job does not see einops of `exec --writable`"):
        start.checked(job(), replace(wish, strict=True), said.append, starts=True)


def test_a_script_for_later_may_lack_its_program_yet(tmp_path):
    assert start.check_program(replace(WISH, folder=tmp_path), starts=False).startswith(
        "there is no `train.py`"
    )


def test_an_environment_without_torch_is_refused_in_one_sentence():
    for where in ("slurm", "ssh", "local"):
        with pytest.raises(UsageError, match="has no PyTorch"):
            job(where=where, site=HOSTS, environment=replace(CPU, torch=""))


# ---- scripts for other machines


THERE = Site(sifs="/scratch/$USER/sifs", projects="$WORK/projects")


@pytest.mark.programs
def test_a_script_for_a_site_has_the_folders_of_the_site_and_none_of_here():
    text = render(job(site=THERE, for_site="there"))
    assert "/home/me" not in text
    assert "/shared/env" not in text
    settings = "\n".join(
        line for line in text.splitlines() if re.match('(environment|folder|script|project|logs)="', line)
    )
    show = f'{settings}\nprintf "%s\\n" "$environment" "$folder" "$script" "$project" "$logs"'
    env = {"USER": "you", "WORK": "/my work", "PATH": os.environ["PATH"]}
    said = subprocess.run(["bash", "-euc", show], env=env, capture_output=True, text=True, check=True)
    project = "/my work/projects/project"
    assert said.stdout.splitlines() == [
        "/scratch/you/sifs/cpu.sif", f"{project}/src", f"{project}/src/train.py", project, f"{project}/src/logs/cpu",
    ]  # fmt: skip


@pytest.mark.programs
@pytest.mark.parametrize(
    "name", ["cost$5", "$USER", "x$(touch y)", "a}b", "`id`", 'say "it\'s"', "back\\slash", "${USER}"]
)
def test_a_name_here_is_the_same_name_at_the_site(tmp_path: Path, name: str):
    here = Path("/home/me/project", name)
    environment = replace(CPU, name=name)
    text = render(job(site=THERE, for_site="there", folder=here, environment=environment))
    settings = "\n".join(line for line in text.splitlines() if re.match("(environment|folder)=", line))
    show = f'{settings}\nprintf "%s\\n" "$environment" "$folder"'
    for work in ("/w", ""):  # without the variable, the path is empty
        env = {"USER": "you", "WORK": work, "PATH": os.environ["PATH"]}
        said = subprocess.run(
            ["bash", "-euc", show], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        folder = work and f"{work}/projects/project/{name}"
        assert said.stdout.splitlines() == [f"/scratch/you/sifs/{name}.sif", folder]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("site", "named"),
    [
        (PLAIN, "has no key `sifs` and no key `projects`"),
        (replace(THERE, sifs=""), "has no key `sifs`,"),
        (replace(THERE, projects=""), "has no key `projects`,"),
    ],
)
def test_a_profile_without_folders_says_which_key_it_lacks(site, named):
    with pytest.raises(UsageError, match=re.escape(named)):
        job(site=site, for_site="there")


def test_a_script_that_is_written_has_its_log_where_it_is_submitted():
    """Slurm opens the log before the script runs. Where the folder is missing, the job ends without a word."""
    assert "--output=%x-%j.log" in options(render(job()))


def test_paths_of_this_machine_are_named(tmp_path):
    (tmp_path / "data").touch()
    made = job(folder=tmp_path, program=("train.py", f"--data={tmp_path}/data", "/dev/null", "/not/here"))
    assert local_paths(made) == (CPU.location, str(tmp_path), f"{tmp_path}/data")
    moved = job(site=THERE, for_site="there", program=("train.py", str(tmp_path / "data")))
    assert local_paths(moved) == (str(tmp_path / "data"),)


def test_a_task_that_failed_counts_when_slurm_has_forgotten_it():
    queue = Queue("JobId=1 JobState=FAILED\nJobId=2 JobState=RUNNING", "JobId=2 JobState=COMPLETED")
    assert wait_for_end("77", queue, print, lambda _: None) is False


def test_a_job_that_slurm_no_longer_knows_has_no_end():
    with pytest.raises(LaunchError, match="no longer knows job 77"):
        wait_for_end("77", Queue("slurm_load_jobs error: Invalid job id specified"), print)


def test_the_failure_in_the_log_of_a_job_is_told(tmp_path):
    log = tmp_path / "x.log"
    started = start.Started(number="7", script=tmp_path / "x.sh", log=log, code=9)
    assert start.failures(started) == ()
    assert "it wrote nothing to" in started.text()
    log.write_text("1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n")
    with log.open("a") as text:
        text.write(
            "srun: error: n2: task 1: Exited with exit code 1\n"
        )  # follows from it, and tells nothing new
    (incident,) = start.failures(started)
    assert "ran out of memory" in incident.message
    assert incident.place.where == f"{log}:1"


def test_the_parts_have_no_line_that_nothing_uses():
    texts = (*TEXTS.values(), render_enter("x", Path("/x.sif"), PLAIN))
    used = {part for text in texts for part in PARTS.glob("*.sh") if part.read_text() in text}
    assert used == set(PARTS.glob("*.sh"))


@pytest.mark.programs
@pytest.mark.parametrize("halves", [("1", " 9\n"), ("1 ", "9\n")])
def test_an_exit_code_that_arrives_in_two_parts_is_read_whole(tmp_path: Path, halves: tuple[str, str]):
    text = (PARTS / "nodes.sh").read_text(encoding="utf-8")
    function = re.search(r"^on_every_node\(\) \{\n.*?^\}$", text, re.MULTILINE | re.DOTALL)
    assert function
    start, end = (shlex.quote(half) for half in halves)
    script = f"""set -euo pipefail
        hosts=(n1 n2) stopped=''
        mkfifo ends
        exec 8<>ends
        say() {{ echo "$*"; }}
        stop() {{ :; }}
        on_node() {{
          [ "$1" = 1 ] || {{ sleep 2; echo 0 143 >&8; return; }}
          printf %s {start} >&8
          sleep 1.5
          printf %s {end} >&8
        }}
        {function[0]}
        on_every_node preflight || echo "the first failure: $?"
    """
    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert (ended.stdout, ended.stderr) == ("n2 ended with exit code 9\nthe first failure: 9\n", "")


@pytest.fixture
def splitter(tmp_path: Path) -> str:
    """The splitter of output, whose logs are in `logs`, as a script."""
    text = (PARTS / "preflight.sh").read_text(encoding="utf-8")
    return f'set -euo pipefail\nlogs={tmp_path}/logs\nsay() {{ echo "$*" >&2; }}\n{text}\nsplit_by_rank'


@pytest.mark.programs
def test_a_line_is_in_the_logs_while_the_rank_still_runs(tmp_path: Path, splitter: str):
    """The input stays open until the line was read: an awk that waits for a full block ends by the time limit."""
    with subprocess.Popen(
        ["timeout", "--signal=KILL", "30", "bash", "-c", splitter],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin
        assert running.stdout
        running.stdin.write("12: step 1\n[n1]: no rank\n3: [default1]:step 1\n")
        running.stdin.flush()
        assert [running.stdout.readline() for _ in range(3)] == [
            "12: step 1\n", "[n1]: no rank\n", "3: [default1]:step 1\n",
        ]  # fmt: skip
        # The next line is printed after this one was split.
        running.stdin.write("12: step 2\n")
        running.stdin.flush()
        assert running.stdout.readline() == "12: step 2\n"
        assert (tmp_path / "logs/rank-12.log").read_text().splitlines()[0] == "step 1"
        assert (tmp_path / "logs/rank-3-1.log").read_text() == "step 1\n"
    assert running.returncode == 0
    assert (tmp_path / "logs/rank-12.log").read_text() == "step 1\nstep 2\n"


@pytest.mark.programs
def test_a_traceback_stays_in_the_log_of_its_rank(tmp_path: Path, splitter: str):
    """torch begins each line of an uncaught error with `[rank3]:`, after the launcher's `3: `."""
    lines = "3: step 1\n3: [rank3]: Traceback (most recent call last):\n"
    subprocess.run(["bash", "-c", splitter], input=lines, capture_output=True, text=True, check=True)
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["rank-3.log"]
    assert (tmp_path / "logs/rank-3.log").read_text() == lines.replace("3: ", "", 1).replace("\n3: ", "\n")


@pytest.mark.programs
def test_the_stacks_of_the_launcher_have_a_file_of_their_own(tmp_path: Path, splitter: str):
    frames = "Exception raised from recvBytes at Utils.hpp:787 (most recent call first):\nframe #0: c10::Error::Error() + 0x9d\n"
    ended = subprocess.run(
        ["bash", "-c", splitter], input=f"[W TCPStore.cpp:138] failed\n{frames}1: frame #0: mine\n", capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == "[W TCPStore.cpp:138] failed\n1: frame #0: mine\n"
    assert (tmp_path / "logs/stacks.log").read_text() == frames


@pytest.mark.programs
def test_without_awk_all_lines_are_printed_and_it_is_said(tmp_path: Path, splitter: str):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "cat", "mkdir"):
        (tools / name).symlink_to(shutil.which(name) or "")
    ended = subprocess.run(
        ["bash", "-c", splitter], input="0: a\n1: b\n", env={"PATH": str(tools)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert ended.stdout == "0: a\n1: b\n"
    assert "awk is not installed" in ended.stderr


# ---- an array of builds


def run_task(folder: Path, build: str, *, cache: str = "cache") -> "subprocess.CompletedProcess[str]":
    """Run the second task of an array whose builds are this line of bash, as Slurm runs it on a node."""
    (folder / "cache").mkdir(exist_ok=True)
    words = ("bash", "-c", build, "bash")
    made = make_array(RECIPES, words, cache=folder / cache, folder=folder, output=folder, site=PLAIN)
    made.logs.mkdir(exist_ok=True)
    script = folder / "array.sh"
    script.write_text(made.text)
    env = {
        "PATH": "/usr/bin:/bin",
        "TMPDIR": str(folder),
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_ARRAY_JOB_ID": "7",
    }
    return subprocess.run(["bash", script], capture_output=True, text=True, check=False, env=env)


def ends(folder: Path) -> tuple[ArrayBuild, ArrayBuild]:
    first, second = read_results(("cpu", "a100"), folder / "slurm", "7")
    return first, second


@pytest.mark.programs
def test_a_task_builds_its_recipe_with_the_shared_cache_and_leaves_a_word(tmp_path):
    ran = run_task(tmp_path, 'printf "%s|" "$1" "$ENVBUILDER_CACHE"')
    assert (ran.returncode, ran.stdout) == (0, f"/home/me/my recipes/a100.yaml|{tmp_path}/cache|"), ran.stderr
    first, second = ends(tmp_path)
    assert (second.name, second.exit_code, second.row()[1]) == ("a100", 0, "built")
    assert second.log == tmp_path / "slurm/build-7_1.log"
    assert (first.name, first.exit_code, first.node) == ("cpu", 9, "")  # of which nobody has heard
    assert "never started" in first.row()[1]


@pytest.mark.programs
@pytest.mark.parametrize(
    ("build", "cache", "code"),
    [("exit 6", "cache", 6), ("true", "none", 9), ("kill -TERM $PPID", "cache", 143)],
)
def test_a_task_that_fails_says_how(build, cache, code, tmp_path):
    ran = run_task(tmp_path, build, cache=cache)
    assert ran.returncode == code, ran.stderr
    _, second = ends(tmp_path)
    assert (second.exit_code, second.row()[1]) == (code, f"failed, exit code {code}")
    assert str(second.log) in second.finding().hint


def test_an_array_asks_for_what_the_site_and_the_person_say():
    head = options(TEXTS["launch-array.sh"])
    assert {"--array=0-1%4", "--partition=gpu", "--account=me", "--time=02:00:00", "--exclusive"} <= set(head)
    assert {"--nodes=1", "--ntasks=1", "--cpus-per-task=8"} <= set(head)
    assert not [one for one in head if "gpu" in one and not one.startswith("--partition")]
    assert "--array=0-1" in options(
        make_array(RECIPES, (), cache=ROOT, folder=ROOT, output=ROOT, site=PLAIN).text
    )


# ---- the look at a node


def preflight(
    folder: Path,
    *,
    smi: str,
    gpus: int = 2,
    cuda: str = "12.4",
    machine: str = "",
    state: str = "",
    apptainer: str = "exit 0",
) -> "subprocess.CompletedProcess[str]":
    """What a node of these programs says; Apptainer is a stand-in."""
    sif = folder / "x.sif"
    if not sif.exists():
        sif.write_bytes(b"sif")
    (folder / "train.py").touch()
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("apptainer", apptainer), ("nvidia-smi", smi)):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    digest = Sha256(hashlib.sha256(b"sif").hexdigest())
    environment = replace(
        A100, location=str(sif), size=3, sha256=digest, cuda=cuda, machine=machine, state=state
    )
    made = job(
        environment=environment, site=Site(node_scratch=str(folder)), gpus=gpus, folder=folder, where="local"
    )
    text = render(made)
    script = text[: text.index("\nhosts=(localhost)")] + "\nMASTER_ADDR=127.0.0.1 MASTER_PORT=1\npreflight\n"
    (folder / "look.sh").write_text(script)
    return look_at_node(folder)


def look_at_node(folder: Path) -> "subprocess.CompletedProcess[str]":
    """The same once more."""
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin"}
    return subprocess.run(["bash", folder / "look.sh"], capture_output=True, text=True, check=False, env=env)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("smi", "said"),
    [
        ("printf '550.54.14\\n550.54.14\\n'", ""),
        ("printf '525.60.13\\n525.60.13\\n'", ""),
        ("echo 550.54.14", "2 GPUs are wanted, and 1 are here"),
        ("printf '515.105.01\\n515.105.01\\n'", "driver 515.105.01 is too old: this CUDA needs 525.60.13"),
        ("echo no devices were found; exit 6", "the NVIDIA driver does not answer: no devices were found"),
    ],
    ids=["newer", "just new enough", "too few", "too old", "none"],
)
def test_a_node_is_judged_by_its_driver_and_gpus(tmp_path, smi, said):
    ended = preflight(tmp_path, smi=smi)
    assert (ended.returncode, said in ended.stderr) == (9 if said else 0, True), ended.stderr


@pytest.mark.programs
def test_values_of_a_site_reach_the_environment_and_the_users_own_win(tmp_path):
    site = Site(
        node_scratch=str(tmp_path), env=(("CC", "site-cc"), ("CPATH", "/site"), ("NCCL_DEBUG", "WARN"))
    )
    text = render(job(site=site, folder=tmp_path, where="local"))
    script = text[: text.index("\nhosts=(localhost)")] + "\nprepare\nenv\n"
    own = {"CC": "mpicc", "APPTAINERENV_CPATH": "/mine", "NCCL_DEBUG": "INFO"}
    env = {"PATH": "/usr/bin:/bin", **own}
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env).stdout
    found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    names = ("CC", "APPTAINERENV_CC", "APPTAINERENV_CPATH", "NCCL_DEBUG", "APPTAINERENV_NCCL_DEBUG")
    assert [found.get(name) for name in names] == ["site-cc", "site-cc", "/mine", "INFO", None]


@pytest.mark.programs
def test_without_a_driver_the_environment_is_not_called_damaged(tmp_path):
    ended = preflight(tmp_path, smi="exit 1", apptainer="echo no libcuda >&2; exit 1")
    assert ended.returncode == LaunchError.exit_code
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("launch: ")]
    assert line.endswith("the NVIDIA driver does not answer: nvidia-smi is not there")


@pytest.mark.programs
def test_a_driver_whose_floor_is_not_known_is_taken(tmp_path):
    assert preflight(tmp_path, smi="printf '400.1\\n400.1\\n'", cuda="9.9").returncode == 0


@pytest.mark.programs
def test_a_node_names_each_path_that_it_lacks(tmp_path):
    preflight(tmp_path, smi="printf '550.1\\n550.1\\n'")
    (tmp_path / "x.sif").unlink()
    (tmp_path / "train.py").unlink()
    shutil.rmtree(tmp_path / "logs")
    (tmp_path / "logs").touch()
    ended = look_at_node(tmp_path)
    said = f"this node lacks the SIF {tmp_path}/x.sif, the program {tmp_path}/train.py, a folder {tmp_path}/logs that you can write"
    assert (ended.returncode, said in ended.stderr) == (LaunchError.exit_code, True), ended.stderr


@pytest.mark.programs
@pytest.mark.parametrize("umask", ["002", "077"])
def test_the_folders_of_logs_have_the_same_mode_whatever_a_node_has_as_umask(tmp_path, umask):
    part = (PARTS / "preflight.sh").read_text()
    script = f"umask {umask}\nenvironment={tmp_path} folder={tmp_path} script= logs={tmp_path}/a/b/x\n{part}\ncheck_paths"
    subprocess.run(["bash", "-euc", script], check=True)
    assert {(tmp_path / path).stat().st_mode & 0o777 for path in ("a", "a/b")} == {0o755}


@pytest.mark.programs
@pytest.mark.parametrize("wrote", [True, False])
def test_the_advice_after_a_failure_names_no_place_without_a_line(tmp_path, wrote):
    common = (PARTS / "common.sh").read_text()
    (tmp_path / "torchrun").mkdir()
    (tmp_path / "torchrun/stdout.log").write_text("a line\n" if wrote else "")
    script = (
        f"set -euo pipefail\njob=7 logs={tmp_path}\n{common}\nsay_end 1 {tmp_path}\nsay_end 1 {tmp_path}.log"
    )
    lines = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True
    ).stderr.splitlines()
    assert [line.endswith(f"diagnose '{tmp_path}'") for line in lines] == [False, wrote, False, False]
    assert lines[-1].endswith("the cause is in the lines above")
    assert [str(tmp_path) in line for line in lines] == [wrote, wrote, wrote, False]


def ends_with(folder: Path, code: int, log: str, *, node: str = "", inside: str = "exit 1") -> list[str]:
    """The last lines of a job whose ranks wrote this log: a node with this `python3`, and a container."""
    logs = folder / "logs/x-7"
    logs.mkdir(parents=True)
    (logs / "rank-1.log").write_text(log)
    text = render(JOBS["launch-local.sh"])
    start.save_script(
        folder / "logs/x.sh", start.GeneratedScript(name="x", text=text, folder=folder, logs=logs.parent)
    )
    (folder / "bin").mkdir()
    (folder / "bin/python3").write_text("#!/bin/sh\n" + (node or f'exec {shlex.quote(sys.executable)} "$@"'))
    (folder / "bin/python3").chmod(0o755)
    script = (
        f"set -euo pipefail\njob=7 logs={logs} settings=(job logs)\n{(PARTS / 'common.sh').read_text()}\n"
        f'prepare() {{ :; }}\ninside() {{ {inside}; }}\nsay_end {code} "$logs"'
    )
    env = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
    assert ended.stdout == ""
    return [line.split(": ", 2)[2] for line in ended.stderr.splitlines()]


DEATH = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 7, in load
[rank1]:     return images[name]
[rank1]:   File "/opt/env/lib/python3.11/site-packages/images/store.py", line 90, in __getitem__
[rank1]: KeyError: 'a7'
"""


@pytest.mark.programs
@pytest.mark.parametrize(
    "place",
    [{}, {"node": "exit 9", "inside": f'shift; exec {shlex.quote(sys.executable)} "$@"'}],
    ids=["node", "image"],
)
def test_a_job_that_fails_ends_with_its_cause(tmp_path, place):
    """By the Python of the node; where that is too old or none, by the environment's."""
    job_line, *lines = ends_with(tmp_path, 1, DEATH, **place)
    assert job_line.startswith("job 7: the ranks ended with exit code 1; logs in ")
    assert lines == [
        "| cause: the program ended with an uncaught exception [EB997], rank 1",
        "|   rank-1.log:5: KeyError: 'a7'",
        "|   in the program: train.py:7 in load",
        "|   repair: read the traceback above that line",
        f"| more: envbuilder diagnose '{tmp_path}/logs/x-7'",
    ]
    log = "".join(f"launch: n1: {line}\n" for line in lines)
    for text in (log, DEATH + log):
        assert as_text(diagnose(["-"], io.BytesIO(text.encode()))).count("KeyError") == text.count(DEATH)


@pytest.mark.programs
def test_a_job_that_ends_well_has_no_cause(tmp_path):
    assert len(ends_with(tmp_path, 0, DEATH)) == 1


@pytest.mark.programs
@pytest.mark.parametrize("node", ["sleep 60 & exec sleep 60", "exit 1", "echo Traceback >&2; exit 1"])
def test_a_cause_that_cannot_be_found_in_time_is_no_error_of_the_job(tmp_path, node):
    began = time.monotonic()
    lines = ends_with(tmp_path, 1, DEATH, node=node)
    assert time.monotonic() - began < 10  # 3 s, on a machine with other work
    assert lines[1:] == [f"the cause: envbuilder diagnose '{tmp_path}/logs/x-7'"]


@pytest.mark.programs
@pytest.mark.parametrize(
    ("torch", "names"),
    [
        ("2.1.2", []),
        (
            "2.6.0",
            ["TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"],
        ),
        ("2.13.0", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]),
        ("2.15.0", ["TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE"]),
    ],
)
def test_the_recorder_is_on_by_the_names_of_a_release_and_the_users_values_stay(tmp_path, torch, names):
    text = render(job(environment=replace(A100, torch=torch), gpus=1))
    functions = "\n".join((PARTS / f"{name}.sh").read_text() for name in ("common", "record"))
    (setting,) = re.findall(r"^recorder=.*$", text, re.MULTILINE)
    script = f"set -euo pipefail\njob=7 logs='{tmp_path}/a b' scratch='{tmp_path}'\n{setting}\n{functions}\nrecord\nenv"

    def recorded(**variables: str) -> dict[str, str]:
        ended = subprocess.run(
            ["bash", "-c", script],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        lines = (line.partition("=") for line in ended.stdout.splitlines())
        return {name: value for name, _, value in lines if name.startswith("TORCH_")}

    pipe = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/recorder-7-"} if names else {}
    made = dict(zip(names, ("2000", "1", f"{tmp_path}/a b/recorder_"), strict=False)) | pipe
    assert recorded() == made
    for theirs in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        assert recorded(**{theirs: "9"}) == {
            name: made[name] for name in made if "BUFFER_SIZE" not in name
        } | {theirs: "9"}


@pytest.mark.programs
def test_a_node_of_another_processor_is_refused_before_it_gets_a_copy(tmp_path):
    own, other = sorted(PROCESSORS, key=lambda one: one.machine != os.uname().machine)
    ended = preflight(tmp_path, smi="printf '550.1\\n550.1\\n'", machine=other.machine)
    said = f"x.sif is for {other.machine}, and this node's processor is {own.machine}\n"
    assert (ended.returncode, ended.stderr.endswith(said)) == (LaunchError.exit_code, True), ended.stderr
    look = tmp_path / "look.sh"
    look.write_text(look.read_text().replace(f"machine={other.machine}", f"machine={own.machine}"))
    assert "processor" not in look_at_node(tmp_path).stderr


@pytest.mark.programs
def test_a_node_reads_the_whole_sif_once_and_again_when_it_was_touched(tmp_path):
    sif, looks = tmp_path / "x.sif", []

    def look() -> str:
        """What the node says; `looks` gets whether it read the SIF."""
        ended = look_at_node(tmp_path)
        looks.append(bool(readers(tmp_path)))
        return ended.stderr

    preflight(tmp_path, smi="printf '550.1\\n550.1\\n'")
    note_readers(tmp_path)
    assert (look(), looks) == ("", [False])
    os.utime(sif, ns=(1, 1))
    assert (look(), look(), looks) == ("", "", [False, True, False])
    sif.write_bytes(b"fis")
    os.utime(sif, ns=(1, 1))  # as it was, to all that can be set
    assert "x.sif has 3 bytes, sha256 " in look()
    sif.write_bytes(b"longer")
    assert "x.sif has 6 bytes\n" in look()
    assert looks == [False, True, False, True, False]


def note_readers(folder: Path, *, openssl: str = "") -> None:
    """Let the programs that hash a file note their names; `openssl` is a script in place of the real one."""
    for name in ("sha256sum", "openssl"):
        real = openssl if openssl and name == "openssl" else f'exec {shutil.which(name)} "$@"'
        (folder / "bin" / name).write_text(f"#!/bin/sh\necho {name} >>'{folder}/readers'\n{real}\n")
        (folder / "bin" / name).chmod(0o755)


def readers(folder: Path) -> list[str]:
    """Return the programs that hashed since the last call."""
    noted = folder / "readers"
    names = noted.read_text().split() if noted.exists() else []
    noted.unlink(missing_ok=True)
    return names


@pytest.mark.programs
@pytest.mark.parametrize("broken", ["exit 1", "echo no digest", "cat >/dev/null; printf %063d 1"])
def test_a_node_hashes_with_openssl_and_without_it_by_sha256sum(tmp_path, broken):
    preflight(tmp_path, smi="printf '550.1\\n550.1\\n'")
    for script, programs in (("", ["openssl"]), (broken, ["openssl", "sha256sum"])):
        note_readers(tmp_path, openssl=script)
        os.utime(tmp_path / "x.sif", ns=(1, 1))  # another time of change
        ended = look_at_node(tmp_path)
        assert (ended.returncode, ended.stderr, readers(tmp_path)) == (0, "", programs)


@pytest.mark.programs
def test_a_sif_that_launch_has_just_hashed_here_is_not_read_again(tmp_path):
    sif = tmp_path / "x.sif"
    sif.write_bytes(b"sif")
    smi = "printf '550.1\\n550.1\\n'"
    preflight(tmp_path, smi=smi, state=file_state(sif))
    shutil.rmtree(tmp_path / f"envbuilder-{os.getuid()}")  # what an earlier look left
    note_readers(tmp_path)
    assert (look_at_node(tmp_path).returncode, readers(tmp_path)) == (0, [])
    sif.write_bytes(b"fis")
    ended = look_at_node(tmp_path)
    assert (ended.returncode, readers(tmp_path)) == (LaunchError.exit_code, ["openssl"])
    assert "this script was written for another file" in ended.stderr


@pytest.mark.parametrize("where", ["slurm", "ssh"])
def test_other_machines_hash_the_sif_themselves(where):
    text = render(job(environment=replace(CPU, state="1 2:3 4 5"), where=where, site=HOSTS))
    assert "\nsif_state=''\n" in text


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_scratch_of_somebody_else_is_not_used(tmp_path):
    (tmp_path / "envbuilder-0").mkdir()
    os.chown(tmp_path / "envbuilder-0", 1234, 1234)
    ended = preflight(tmp_path, smi="exit 0")
    assert ended.returncode == LaunchError.exit_code
    assert "envbuilder-0 belongs to another user" in ended.stderr


@pytest.mark.programs
def test_a_scratch_that_is_a_link_to_a_folder_of_the_users_own_is_not_used(tmp_path):
    """Another user planted it: caches and copies would go where the link leads."""
    (tmp_path / "precious").mkdir()
    (tmp_path / f"envbuilder-{os.getuid()}").symlink_to("precious")
    ended = preflight(tmp_path, smi="exit 0")
    assert ended.returncode == LaunchError.exit_code
    assert "or is a link" in ended.stderr
    assert list((tmp_path / "precious").iterdir()) == []


@pytest.mark.programs
@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_place_where_others_may_exchange_the_scratch_is_passed_over(tmp_path, mode):
    tmp_path.chmod(mode)
    ended = preflight(tmp_path, smi="printf '550.1\\n550.1\\n'")
    assert f"{tmp_path} is passed over" in ended.stderr
    assert not (tmp_path / f"envbuilder-{os.getuid()}").exists()
    tmp_path.chmod(0o1777)
    assert look_at_node(tmp_path).stderr == ""
    assert (tmp_path / f"envbuilder-{os.getuid()}").stat().st_mode & 0o777 == 0o700


@pytest.mark.programs
def test_the_logs_of_a_job_are_in_no_folder_that_was_planted(tmp_path):
    parts = Path(start.__file__).parent / "parts"
    functions = "\n".join((parts / f"{name}.sh").read_text() for name in ("common", "preflight"))
    (tmp_path / "precious").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/x-7").symlink_to(tmp_path / "precious")
    script = (
        f"set -euo pipefail\nlogs={tmp_path}/logs/x-7\n{functions}\nmake_logs\necho '0: line' | split_by_rank"
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, "or is a link" in ended.stderr) == (LaunchError.exit_code, True)
    assert list((tmp_path / "precious").iterdir()) == []
    (tmp_path / "logs/x-7").unlink()
    for _ in range(2):  # a requeued job has one
        subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert (tmp_path / "logs/x-7/rank-0.log").read_text() == "line\n"


def test_a_folder_of_logs_that_everybody_can_write_is_refused(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs").chmod(0o777)
    script = start.GeneratedScript(name="x", text="#!/bin/bash\n", folder=tmp_path, logs=tmp_path / "logs")
    with pytest.raises(UsageError, match=rf"logs` belongs to user {os.getuid()} with mode 777"):
        start.save_script(tmp_path / "logs/x.sh", script)
    assert list((tmp_path / "logs").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_logs_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "logs").mkdir()
    os.chown(tmp_path / "logs", 1234, 1234)
    script = start.GeneratedScript(name="x", text="#!/bin/bash\n", folder=tmp_path, logs=tmp_path / "logs")
    with pytest.raises(UsageError, match="logs` belongs to user 1234"):
        start.save_script(tmp_path / "logs/x.sh", script)
