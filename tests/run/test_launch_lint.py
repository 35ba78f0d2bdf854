"""What `launch lint` finds in sbatch scripts: each mistake where it stands, and nothing in a script that is right."""

import os
import re
from pathlib import Path

import pytest

from envbuilder.core.errors import UsageError
from envbuilder.core.findings import Severity
from envbuilder.core.process import ProcessRunner
from envbuilder.run.launch.lint import check_syntax, lint, lint_files
from envbuilder.run.launch.lint.mistakes import LintCode
from tests.support.runner import FakeRunner, Machine

GOOD = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --signal=B:TERM@120
set -e
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000)) SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export TRITON_CACHE_DIR=$TMPDIR/triton PYTHONNOUSERSITE=1
srun --kill-on-bad-exit=1 apptainer exec --nv env.sif \\
  torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id=$SLURM_JOB_ID \\
  --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train.py
"""
TASKS = """\
#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH -c 8
#SBATCH --signal=B:TERM@120
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000)) SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export TRITON_CACHE_DIR=$TMPDIR/triton PYTHONNOUSERSITE=1
srun --kill-on-bad-exit=1 --gpu-bind=none apptainer exec --nv env.sif \\
  sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec python train.py'
"""
UNNUMBERED = TASKS.replace("RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID ", "")
MEETS = "--rdzv-id=$SLURM_JOB_ID \\\n  --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
ALONE = GOOD.replace(f"--nnodes=2 --nproc-per-node=4 {MEETS}", "--nproc-per-node=4")
LAUNCH = "srun --kill-on-bad-exit=1 apptainer"
C10D = "--rdzv-backend=c10d"


def found(text: str) -> list[tuple[str, int]]:
    return [(finding.code, int(finding.where.rpartition(":")[2])) for finding in lint(Path("job.sh"), text)]


@pytest.mark.parametrize("text", [GOOD, TASKS], ids=["torchrun", "tasks"])
def test_nothing_is_found_in_a_script_that_is_right(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "name",
    sorted((Path(__file__).parents[1] / "golden").glob("launch-slurm-*.sh")),
    ids=lambda path: path.stem,
)
def test_nothing_is_found_in_what_is_generated(name):
    assert lint_files([name], FakeRunner()) == ()


# Code, the script, what stands there, what stands there instead, and the line that is told.
CASES = [
    (LintCode.RAY_ENDS, GOOD, "set -e", "srun ray start --head &", 7),
    (LintCode.GPUS_PER_TASK, GOOD, "#SBATCH --gpus-per-node=4", "#SBATCH --gpus-per-task=1", 4),
    (LintCode.GPUS_PER_TASK, TASKS, "--gpu-bind=none", "--gpu-bind=single:1", 10),
    (LintCode.MASTER_GUESSED, GOOD, "| head -n1)", "| head -n1 || echo localhost)", 8),
    (LintCode.MASTER_GUESSED, TASKS, 'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)', "MASTER_ADDR=127.0.0.1", 7),
    (LintCode.MASTER_GUESSED, GOOD, "endpoint=$MASTER_ADDR:$MASTER_PORT", "endpoint=localhost:0", 11),
    (LintCode.MASTER_INSIDE, GOOD, "torchrun --nnodes", "bash -c 'scontrol show hostnames'; torchrun --nnodes", 11),
    (LintCode.MASTER_NODE_IP, TASKS, '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)', "$SLURM_LAUNCH_NODE_IPADDR", 7),
    (LintCode.MASTER_NODE_IP, TASKS, '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)', "$(hostname --ip-address)", 7),
    (LintCode.PORT_FIXED, GOOD, "$((20000 + SLURM_JOB_ID % 12000))", "29500", 9),
    (LintCode.PORT_FIXED, GOOD, "$MASTER_ADDR:$MASTER_PORT", "$MASTER_ADDR:29500", 11),
    (LintCode.PORT_FIXED, GOOD, "endpoint=$MASTER_ADDR:$MASTER_PORT", "endpoint $MASTER_ADDR:29500", 11),
    (LintCode.CPUS_NOT_INHERITED, GOOD, " SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "", 5),
    (LintCode.CPUS_NOT_INHERITED, TASKS, " SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "", 5),
    (LintCode.KEEPS_RUNNING, GOOD, " --kill-on-bad-exit=1", "", 11),
    (LintCode.NODE_RANK_UNUSED, GOOD, C10D, f"{C10D} --node-rank=$SLURM_NODEID", 11),
    (LintCode.NODE_RANK_MISSING, GOOD, MEETS, "--master-addr=$MASTER_ADDR", 11),
    (LintCode.CLEAN_ENVIRONMENT, GOOD, "exec --nv", "exec --cleanenv --nv", 11),
    (LintCode.CLEAN_ENVIRONMENT, GOOD, "#SBATCH --nodes=2", "#SBATCH --nodes=2\n#SBATCH --export=NONE", 3),
    (LintCode.RANK_TOO_EARLY, UNNUMBERED, "export TRITON", "export RANK=$SLURM_PROCID\nexport TRITON", 9),
    (LintCode.RANK_TOO_EARLY, GOOD, MEETS, "--node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR", 11),
    (LintCode.NO_SIGNAL, GOOD, "#SBATCH --signal=B:TERM@120\n", "", 10),
    (LintCode.NO_NV, GOOD, "exec --nv", "exec", 11),
    (LintCode.OWN_PYTHON, GOOD, " PYTHONNOUSERSITE=1", "", 11),
    (LintCode.TASKS_AND_TORCHRUN, GOOD, "--ntasks-per-node=1", "--ntasks-per-node=4", 3),
    (LintCode.CACHES_AT_HOME, GOOD, "TRITON_CACHE_DIR=$TMPDIR/triton ", "", 11),
    (LintCode.CRLF, GOOD, "set -e\n", "set -e\r\n", 7),
    (LintCode.SBATCH_TOO_LATE, GOOD, "set -e\n", "set -e\n#SBATCH --time=10\n", 8),
    (LintCode.NNODES_MISSING, GOOD, "--nnodes=2 ", "", 11),
    (LintCode.NCCL_FORCED, GOOD, "set -e\n", "set -e\nexport NCCL_IB_DISABLE=1\n", 8),
    (LintCode.NCCL_FORCED, TASKS, "exec --nv", 'exec --env NCCL_P2P_DISABLE="1" --nv', 10),
    (LintCode.PRIVATE_SHM, TASKS, "exec --nv", "exec --contain --nv", 10),
    (LintCode.NO_SCRIPT, GOOD, GOOD, "", 1),
    (LintCode.NO_SCRIPT, GOOD, GOOD, "#!/bin/bash\n#SBATCH --time=10\n# python is told of here alone\n", 1),
    (LintCode.FIRST_NODE_ALONE, GOOD, LAUNCH, "apptainer", 11),
    (LintCode.NO_ENDPOINT, GOOD, " --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT", "", 11),
    (LintCode.ONE_PROCESS, GOOD, GOOD, "#!/bin/bash\n#SBATCH -n 4\npython train.py\n", 3),
    (LintCode.UNKNOWN_LAUNCHER, GOOD, GOOD, "#!/bin/bash\nsrun ./run\n", 2),
    (LintCode.NOT_FOLLOWED, GOOD, "set -e\n", "set -e\n. ./env.sh\n", 8),
    (LintCode.GPUS_HIDDEN, GOOD, "set -e\n", "set -e\nexport CUDA_VISIBLE_DEVICES=0\n", 8),
]  # fmt: skip


@pytest.mark.parametrize(("code", "text", "there", "instead", "line"), CASES)
def test_a_mistake_is_found_where_it_stands(code, text, there, instead, line):
    assert there in text
    assert found(text.replace(there, instead)) == [(code, line)]


@pytest.mark.parametrize(
    "options",
    [
        "--time=1:00:00 --nodes=2",
        "-t 60 -N 2",
        "-t60 -N2",
        "--exclusive --nodes 2  # not 1",
        "--nodes=2 --requeue",
    ],
)
def test_options_are_read_in_each_form_that_sbatch_takes(options):
    assert found(ALONE.replace("--nodes=2", options)) == [(LintCode.NNODES_MISSING, 11)]
    assert found(ALONE.replace("--nodes=2", "--nodes=1 --comment=x  # for --nodes=2 see the other")) == []


def test_an_option_that_is_not_the_first_of_its_line_is_found():
    assert found(GOOD.replace("--gpus-per-node=4", "--time=60 --gpus-per-task=1")) == [
        (LintCode.GPUS_PER_TASK, 4)
    ]
    bound = TASKS.replace(" --gpu-bind=none", "")
    assert found(bound.replace("--gres=gpu:4", "--gres=gpu:4 --gpu-bind=none")) == []
    assert found(bound.replace("--gres=gpu:4", "--gres=gpu:4 --gpu-bind=closest")) == [
        (LintCode.GPUS_PER_TASK, 4)
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [("train.py", "import torch\n"), ("job", "#!/usr/bin/env python3\n#SBATCH -N 2\nimport os\n")],
)
def test_a_program_of_python_is_no_script(name, text):
    (finding,) = lint(Path(name), text)
    assert (finding.code, finding.where) == (LintCode.NO_SCRIPT, f"{name}:1")
    assert "a program of Python" in finding.message


def test_every_rule_has_a_case():
    assert {case[0] for case in CASES} == set(LintCode) - {LintCode.SYNTAX}


def test_a_comment_is_no_command():
    assert found(GOOD.replace("set -e", "# srun --gpus-per-task=1 || echo localhost")) == []


def test_one_node_may_meet_at_localhost():
    one = TASKS.replace("-N 2", "-N 1").replace(
        '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)', "localhost"
    )
    assert found(one) == []


def test_a_finding_says_what_to_do():
    (finding,) = lint(Path("job.sh"), GOOD.replace(" SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", ""))
    assert (finding.severity, finding.where) == (Severity.WARNING, "job.sh:5")
    assert finding.hint == "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"


UNSET = re.sub(r"MASTER_ADDR=.*\n", "", ALONE).replace(
    "MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000)) ", ""
)


PORTLESS = ALONE.replace(" MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))", "")


@pytest.mark.parametrize("text", [ALONE, PORTLESS, UNSET], ids=["address and port", "no port", "neither"])
def test_torchrun_without_nodes_is_right_with_exactly_what_the_hint_says(text):
    """The repair makes the job one world that can meet, in one go."""
    assert "rdzv" not in text
    (finding,) = lint(Path("job.sh"), text)
    assert (finding.code, finding.severity) == (LintCode.NNODES_MISSING, Severity.ERROR)
    assert "each node trains apart" in finding.message
    assert "master" not in finding.message
    options, _, before = finding.hint.partition(", before it: ")
    repaired = text.replace("torchrun ", f"torchrun {options} ")
    repaired = repaired.replace("srun ", f"{before}\nsrun ") if before else repaired
    assert found(repaired) == []
    assert "--nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID" in repaired
    assert repaired.count("MASTER_ADDR=$(scontrol") == repaired.count("MASTER_PORT=$((") == 1


def test_a_rendezvous_alone_is_not_enough():
    half = ALONE.replace(
        "torchrun ", "torchrun --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT "
    )
    (finding,) = lint(Path("job.sh"), half)
    assert (finding.code, finding.hint) == (LintCode.NNODES_MISSING, "--nnodes=$SLURM_NNODES")


@pytest.mark.parametrize(
    ("there", "instead"),
    [("torchrun ", "torchrun --standalone "), ("srun ", "srun --nodes=1 "), ("srun ", "srun -N1 ")],
)
def test_a_torchrun_that_is_to_have_one_node_is_left_alone(there, instead):
    assert found(ALONE.replace(there, instead)) == []


def test_the_hint_for_node_ranks_is_one_that_lint_lets_pass():
    text = ALONE.replace("torchrun ", "torchrun --nnodes=2 --master-addr=$MASTER_ADDR ")
    (finding,) = lint(Path("job.sh"), text)
    assert finding.code == LintCode.NODE_RANK_MISSING
    assert found(text.replace("torchrun ", f"torchrun {finding.hint} ")) == []


BARE = GOOD.replace(LAUNCH, "apptainer")


@pytest.mark.parametrize(
    "text",
    [
        BARE,
        BARE.replace("--ntasks-per-node=1", "--ntasks-per-node=4"),
        BARE.replace("apptainer exec --nv env.sif", "").replace("torchrun", "python -m torch.distributed.run"),
        BARE.replace("train.py", "train.py --tensor-parallel 2"),
        BARE.replace("set -e", "set -e\nwhere=$(srun --nodes=1 --ntasks=1 hostname)\necho torchrun starts"),
    ],
    ids=["plain", "several tasks", "python -m", "parallel", "srun asks for a name"],
)  # fmt: skip
def test_torchrun_without_srun_is_right_with_exactly_what_the_hint_says(text):
    """A batch script runs on the first node only: nothing starts the others' torchrun."""
    (finding,) = lint(Path("job.sh"), text)
    assert (finding.code, finding.severity) == (LintCode.FIRST_NODE_ALONE, Severity.ERROR)
    before = finding.hint.removesuffix(" in front of it")
    repaired = "\n".join(
        f"{before} {line}" if re.match(r"\s*(?:apptainer|python)", line) else line
        for line in text.split("\n")
    )
    assert before in repaired
    assert found(repaired) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [("--nproc-per-node=4", "other nodes do nothing"), ("--nnodes=2", "waits there for the others forever")],
)
def test_a_bare_torchrun_has_one_mistake_and_its_repair_is_complete(options: str, message: str):
    text = BARE.replace(f"--nnodes=2 --nproc-per-node=4 {MEETS}", options)
    (finding,) = lint(Path("job.sh"), text)
    assert (finding.code, finding.severity) == (LintCode.FIRST_NODE_ALONE, Severity.ERROR)
    assert message in finding.message
    before, lacks = finding.hint.split(" in front of it, and ")
    assert (
        found(text.replace("apptainer", f"{before} apptainer").replace(options, f"{options} {lacks}")) == []
    )


@pytest.mark.parametrize(
    "command", ["deepspeed --num_gpus 4 train.py --deepspeed ds.json", "accelerate launch train.py"]
)
def test_a_launcher_that_is_told_of_no_other_node_trains_on_the_first(command: str):
    text = f"#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1 --gres=gpu:4\n{SETTINGS}{command}\n"
    first = next(one for one in lint(Path("job.sh"), text) if one.code == LintCode.FIRST_NODE_ALONE)
    assert "other nodes do nothing" in first.message
    assert first.severity is Severity.WARNING, "a file of the home or the site may name them"
    assert LintCode.FIRST_NODE_ALONE not in [code for code, _ in found(text.replace("-N 2", "-N 1"))]
    install = text.replace(command, "module load deepspeed && pip install accelerate")
    assert LintCode.FIRST_NODE_ALONE not in [code for code, _ in found(install)]


def test_what_else_is_wrong_is_said_without_srun_too():
    """The repair brings srun, and with it all that srun needs: it is said at once."""
    bare = BARE.replace("#SBATCH --signal=B:TERM@120\n", "").replace("TRITON_CACHE_DIR=$TMPDIR/triton ", "")
    bare = bare.replace(" SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "")
    assert {code for code, _ in found(bare)} == {
        LintCode.FIRST_NODE_ALONE, LintCode.NO_SIGNAL, LintCode.CACHES_AT_HOME, LintCode.CPUS_NOT_INHERITED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("apptainer", "mpirun --npernode 1 apptainer"),
        ("apptainer", "clush -w $SLURM_JOB_NODELIST apptainer"),
        ("apptainer", "for host in $(scontrol show hostnames); do ssh $host apptainer"),
        ("--nnodes=2", "--standalone"),
        ("--nnodes=2", "--nnodes=1"),
        ("--nodes=2", "--nodes=1"),
        ("apptainer", 'start() { srun --kill-on-bad-exit=1 "$@"; }\nstart apptainer'),
    ],
)
def test_a_torchrun_that_is_brought_to_its_nodes_is_left_alone(there, instead):
    assert found(BARE.replace(there, instead)) == []


NUMBERED = GOOD.replace(MEETS, "--node_rank $SLURM_NODEID --master-addr=$MASTER_ADDR")
NUMBERS = [
    "--node_rank $SLURM_NODEID", "--node-rank=$SLURM_PROCID", '--node_rank="$SLURM_NODEID"', "--node-rank ${SLURM_PROCID}",
]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("head", ["torchrun", 'bash -c "torchrun', '--comment="it\'s" torchrun'])
def test_the_hint_for_a_node_rank_of_the_batch_shell_repairs_the_script(number, head):
    """The batch shell knows one value, its own node's: every node gets 0."""
    text = NUMBERED.replace("--node_rank $SLURM_NODEID", number).replace("torchrun", head)
    text = text.replace("train.py", 'train.py"') if "bash" in head else text
    (finding,) = lint(Path("job.sh"), text)
    assert (finding.code, finding.where) == (LintCode.RANK_TOO_EARLY, "job.sh:11")
    assert found(text.replace(number, finding.hint.removeprefix("replace it by "))) == []


def test_what_the_hint_for_node_ranks_needs_is_in_it():
    text = NUMBERED.replace(" MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))", "")
    (finding,) = lint(Path("job.sh"), text)
    options, _, before = finding.hint.removeprefix("replace it by ").partition(", before it: ")
    assert before == "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))"
    assert (
        found(text.replace("--node_rank $SLURM_NODEID", options).replace("srun ", f"{before}\nsrun ")) == []
    )


@pytest.mark.parametrize("number", NUMBERS)
def test_a_node_rank_that_each_node_fills_is_right(number):
    text = NUMBERED.replace("--node_rank $SLURM_NODEID", number)
    single = text.replace("torchrun", "bash -c 'torchrun").replace("train.py", "train.py'")
    escaped = text.replace("torchrun", 'bash -c "torchrun').replace("train.py", 'train.py"')
    escaped = escaped.replace(number, number.replace("$", "\\$").replace('"', ""))
    assert found(single) == found(escaped) == []


@pytest.mark.parametrize(
    "there",
    [
        "--rdzv-endpoint=localhost:$MASTER_PORT", "--rdzv_endpoint 127.0.0.1:$MASTER_PORT", '--rdzv-endpoint="localhost"',
        "--master-addr=localhost", "--master_addr 127.0.0.1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("address", [True, False], ids=["address set", "unset"])
def test_nodes_that_each_meet_themselves_are_right_with_exactly_what_the_hint_says(there, address):
    text = GOOD.replace("--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT", there)
    if not address:
        text = re.sub("MASTER_ADDR=.*\n", "", text).replace("MASTER_ADDR ", "")
    (finding,) = lint(Path("job.sh"), text)
    assert (finding.code, finding.where) == (LintCode.MASTER_GUESSED, f"job.sh:{10 + address}")
    options, _, before = finding.hint.removeprefix("replace it by ").partition(", before it: ")
    assert before.startswith("export MASTER_ADDR=$(scontrol") is not address
    repaired = text.replace(there, options).replace("srun ", f"{before}\nsrun ")
    assert found(repaired) == []
    assert "$MASTER_ADDR" in repaired


def test_a_world_of_one_node_may_meet_at_itself():
    text = GOOD.replace("$MASTER_ADDR:$MASTER_PORT", "localhost:0")
    assert found(text.replace("--nodes=2", "--nodes=1")) == []
    assert found(text.replace("--nnodes=2", "--nnodes=1")) == []
    assert found(text.replace("--nnodes=2", "--standalone")) == []


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("#SBATCH --time=10\n./run\n", 3, "what starts the ranks"),
        ("srun ./run\n", 2, "what starts the ranks"),
        ("module load x\n./run.sh\nexit 0\n", 4, "what starts the ranks"),
        ("srun colossalai run --nproc_per_node 4 train.py\n", 2, "`colossalai`"),
        ("horovodrun -np 8 python train.py\n", 2, "`horovodrun`"),
        ("aprun -n 8 python train.py\n", 2, "`aprun`"),
    ],
)
def test_a_launcher_that_is_not_known_is_said(text, line, said):
    (finding,) = lint(Path("job.sh"), f"#!/bin/bash\n{text}")
    assert (finding.code, finding.severity) == (LintCode.UNKNOWN_LAUNCHER, Severity.WARNING)
    assert finding.where == f"job.sh:{line}"
    assert said in finding.message


ENDS = "#SBATCH --signal=B:TERM@120\nexport TRITON_CACHE_DIR=/tmp\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"#SBATCH -n 4\n{ENDS}python train.py", LintCode.ONE_PROCESS),
        (f"#SBATCH --ntasks-per-node=4\n{ENDS}X=1 python3 -u -m package", LintCode.ONE_PROCESS),
        (f"#SBATCH --nodes=2\n{ENDS}exec /opt/bin/python train.py", LintCode.ONE_PROCESS),
        (f"#SBATCH -n 1\n{ENDS}python train.py", None),
        (f"#SBATCH -n 4\n{ENDS}python make_data.py\nsrun -K python train.py", None),
        (f"#SBATCH -n 4\n{ENDS}python -m venv env\nsrun -K python train.py", None),
        (f"#SBATCH -n 4\n{ENDS}python -m venv env\nsrun -K env/bin/python train.py", None),
        (f"#SBATCH -N 1\n#SBATCH -c 1\n{ENDS}srun -K python train.py", None),
    ],
)
def test_python_without_srun_is_one_process(text, code):
    assert [one for one, _ in found(f"#!/bin/bash\n{text}\n")] == ([code] if code else [])


ACCELERATE = GOOD.replace(
    f"torchrun --nnodes=2 --nproc-per-node=4 {MEETS}",
    "accelerate launch --num_machines 2 --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR",
)
DEEPSPEED = GOOD.replace(
    f"torchrun --nnodes=2 --nproc-per-node=4 {MEETS}",
    "deepspeed --no_ssh --num_nodes=2 --node_rank=$SLURM_NODEID --master_addr $MASTER_ADDR",
)


@pytest.mark.parametrize(
    ("text", "command"),
    [(ACCELERATE, "accelerate launch"), (DEEPSPEED, "deepspeed")],
    ids=["accelerate", "deepspeed"],
)
def test_a_node_rank_of_the_batch_shell_is_found_for_every_launcher(text, command):
    (finding,) = lint(Path("job.sh"), text)
    assert finding.code == LintCode.RANK_TOO_EARLY
    assert f"bash -c '{command} --" in finding.hint
    each = text.replace(command, f"bash -c '{command}").replace("train.py", "train.py'")
    assert found(each) == []
    assert found(
        text.replace("$SLURM_NODEID", "$NODE_RANK").replace(
            "set -e", "set -e\nexport NODE_RANK=$SLURM_NODEID"
        )
    ) == [(LintCode.RANK_TOO_EARLY, 8)]
    assert found(text.replace("--nodes=2", "--nodes=1")) == []


def test_accelerate_without_srun_starts_on_the_first_node_alone():
    assert (LintCode.FIRST_NODE_ALONE, 11) in found(ACCELERATE.replace(LAUNCH, "apptainer"))


def test_c10d_needs_an_endpoint_and_no_other_address():
    """torchrun reads `--master-addr` for its static rendezvous only."""
    for instead in ("", "--master-addr=$MASTER_ADDR"):
        text = GOOD.replace("--rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT", instead)
        (finding,) = lint(Path("job.sh"), text)
        assert (finding.code, finding.severity) == (LintCode.NO_ENDPOINT, Severity.ERROR)
        assert found(text.replace(C10D, f"{C10D} {finding.hint}")) == []
        assert found(text.replace("--nodes=2", "--nodes=1")) == []


def test_the_address_that_the_first_node_knows_is_right():
    asked = '$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address)'
    text = TASKS.replace('$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)', asked)
    assert found(text) == []


def test_one_core_for_each_task_is_what_srun_gives():
    text = TASKS.replace(" SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "")
    assert found(text.replace("-c 8", "--cpus-per-task=1")) == []


def test_a_single_task_has_no_others_that_could_wait():
    text = "#SBATCH --nodes=1\n#SBATCH --ntasks=1\n#SBATCH --signal=B:TERM@120\nsrun python train.py\n"
    assert found(text) == []
    assert found(text.replace("ntasks=1", "ntasks=2")) == [("EB876", 4)]


def test_what_is_forced_is_said_with_its_reason():
    (finding,) = lint(Path("job.sh"), GOOD.replace("set -e", "set -e; export NCCL_IB_DISABLE=1"))
    assert finding.severity is Severity.WARNING
    assert "most of the bandwidth would be lost" in finding.message


def test_a_script_that_cannot_be_read_is_said(tmp_path):
    for path in (tmp_path / "none.sh", tmp_path):
        with pytest.raises(UsageError, match="a script cannot be read") as caught:
            lint_files([path], FakeRunner())
        assert "`jobs/*.sbatch`" in caught.value.hint


SCRIPTS = Path(__file__).parent / "scripts"


def scripts(name: str) -> list[tuple[str, str]]:
    """Return the title and the text of each script in a file."""
    parts = re.split(r"^=== ", (SCRIPTS / name).read_text(), flags=re.MULTILINE)[1:]
    return [(title, text) for title, _, text in (part.partition("\n") for part in parts)]


def errors(text: str) -> list[tuple[str, str]]:
    findings = lint(Path("job.sh"), text)
    return [(one.code, one.where) for one in findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize("text", [pytest.param(text, id=title) for title, text in scripts("good.txt")])
def test_a_script_that_works_has_no_error(text: str):
    assert errors(text) == []
    assert LintCode.RAY_ENDS not in {one.code for one in lint(Path("job.sh"), text)}


def test_an_option_of_the_name_of_a_launcher_is_none():
    (text,) = (text for title, text in scripts("good.txt") if "without its launcher" in title)
    assert not {"EB884", "EB889", "EB895"} & {code for code, _ in found(text)}


@pytest.mark.parametrize(
    ("place", "text"),
    [pytest.param(title.split()[0], text, id=title) for title, text in scripts("wrong.txt")],
)
def test_a_script_with_one_mistake_has_it_as_its_only_error(place: str, text: str):
    code, _, line = place.partition(":")
    there = (code, f"job.sh:{line}")
    assert there in [(one.code, one.where) for one in lint(Path("job.sh"), text)]
    assert set(errors(text)) <= {there}


SETTINGS = "export SRUN_CPUS_PER_TASK=8 PYTHONNOUSERSITE=1 TRITON_CACHE_DIR=/tmp\n"
STEPS = "train() {\n  srun -K torchrun --nproc-per-node=4 train.py\n}\n"


@pytest.mark.parametrize(
    "word",
    [
        "env.sh", "./env.sh", '"$SLURM_SUBMIT_DIR/env.sh"', '"$(dirname "$0")/env.sh"', "${0%/*}/env.sh",
        '"$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/env.sh"', "$HERE/env.sh", "$(pwd)/env.sh",
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["source", ".", "[ -f env.sh ] &&  source"])
def test_a_sourced_file_is_followed(tmp_path: Path, command: str, word: str):
    """What it sets is known, and what is wrong in it is said where it stands."""
    (tmp_path / "env.sh").write_text(f"#SBATCH --nodes=1\n{SETTINGS}{STEPS}")
    job = tmp_path / "job.sh"
    head = "#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=4 -c 8 --signal=B:TERM@60\n"
    job.write_text(f'{head}HERE="$(cd "$(dirname "$0")" && pwd)"\n{command} {word}\ntrain\n')
    assert [(one.code, one.where) for one in lint_files([job], FakeRunner())] == [
        ("EB889", f"{tmp_path / 'env.sh'}:4")
    ]
    (tmp_path / "env.sh").write_text(f"source {tmp_path}/env.sh\n")  # itself
    assert "EB875" not in [one.code for one in lint_files([job], FakeRunner())]


@pytest.mark.parametrize("word", ["/dev/zero", ".", f"/{'long' * 100}", "<(module load x)", "none.sh"])
def test_what_is_no_file_is_not_read(tmp_path: Path, word: str):
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\nsource {word}\npython train.py\n")
    assert [(one.code, one.where) for one in lint_files([tmp_path / "job.sh"], FakeRunner())] == [
        ("EB896", f"{tmp_path}/job.sh:2")
    ]


def test_what_an_unknown_file_may_set_is_not_missing():
    head = "#!/bin/bash\n#SBATCH -N 2 --gpus-per-node=4 -c 8 --signal=B:TERM@60\n"
    step = "srun -K apptainer exec env.sif torchrun train.py\n"
    assert [code for code, _ in found(f"{head}source /site/venv/bin/activate\n{step}")] == [
        "EB889", "EB882", "EB875", "EB885", "EB883",
    ]  # fmt: skip
    unknown = f"{head}source ~/env.sh\n{step}"
    assert [code for code, _ in found(unknown)] == ["EB896", "EB889"]
    assert errors(unknown) == []


HEAD = GOOD[: GOOD.index("srun")].replace(" SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK", "")
RUN = "python train.py --config c.yaml --checkpoint x.pt"
TRUE = "  true\n"
NO_CPUS = LintCode.CPUS_NOT_INHERITED.value


@pytest.mark.parametrize(
    ("step", "codes"),
    [
        (f"srun -K --cpu-bind=cores {RUN}", [NO_CPUS]),
        (f"srun -K --container-image=a.sqsh {RUN}", [NO_CPUS]),
        (f"srun -K bash -c '{RUN}'", [NO_CPUS]),
        (f"srun -K -c 8 {RUN}", []),
        (f"srun -K -c8 {RUN}", []),
        (f"srun -K --cpus-per-task 8 {RUN}", []),
        (f"srun --label --cpus-per-task=8 --kill-on-bad-exit=1 {RUN}", []),
        (f'ARGS=(\n  -K  # at once\n  --cpus-per-task=8\n)\nsrun "${{ARGS[@]}}" {RUN}', []),
        (f'OPTIONS="-K -c 8"\nsrun $OPTIONS {RUN}', []),
        (f'srun -c 8 "$@" {RUN}', []),
        (f"cat > run.sh <<'EOF'\nsrun {RUN}\n#SBATCH --nodes=1\nEOF\nsrun -K -c 8 {RUN}", []),
        (f"bash <<EOF\nsrun -c 8 {RUN}\nEOF", [LintCode.KEEPS_RUNNING.value]),
        (f"cat <<< word\nsize=$((1 << bits))\nsrun -K {RUN}", [NO_CPUS]),
        (f'log() {{ echo "$*"; }}  # what follows is no part of it\nsrun -K {RUN}', [NO_CPUS]),
        (f"begun() {{\nsrun -K {RUN}", [NO_CPUS]),
        (f"# it doesn't\necho it  # isn't\nsrun -K {RUN}", [NO_CPUS]),
        (f"unused() {{\n  srun {RUN}\n}}\nsrun -K -c 8 {RUN}", []),
        (f"step()\n{{\n  srun -K $1 {RUN}\n}}\nif step -c8; then echo; fi", []),
        (f"twice() {{ twice; srun -c 8 {RUN}; }}\ntwice\ntwice", [LintCode.KEEPS_RUNNING.value]),
        ("export START='python t.py'\nsrun -K bash -c '\n$START\n'", [NO_CPUS]),
        (f"unused() {{\n{TRUE * 3000}  srun {RUN}\n}}\nsrun -K -c 8 {RUN}", []),
        (f"long() {{\n{TRUE * 3000}  srun -K $1 {RUN}\n}}\nlong -c8", []),
    ],
)
def test_a_script_is_read_as_the_shell_and_srun_read_it(step: str, codes: list[str]):
    assert [code for code, _ in found(f"{HEAD}{step}\n")] == codes


FIRST = ("#!/bin/bash", "#!/bin/sh -e", "#!/usr/bin/env bash", "#! /usr/bin/env -S bash -l", "#!/opt/x/bash")


def syntax(text: str) -> list[tuple[str, str, Severity]]:
    findings = check_syntax(Path("job.sh"), text, ProcessRunner(os.environ))
    assert {one.code for one in findings} <= {LintCode.SYNTAX}
    return [(one.where, one.message, one.severity) for one in findings]


@pytest.mark.programs
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("if true; then\nsrun ./run\n", 3, "syntax error: unexpected end of file"),
        ("srun ./run\nfi\n", 3, "syntax error near unexpected token `fi'"),
        ('srun echo "a\n', 2, "unexpected EOF while looking for matching `\"'"),
    ],
)
def test_a_script_that_bash_rejects_is_an_error_in_bashs_words(first: str, text: str, line: int, words: str):
    """Newer versions of bash add which command is open, and on which line it began."""
    ((where, message, severity),) = syntax(f"{first}\n{text}")
    assert (where, severity) == (f"job.sh:{line}", Severity.ERROR)
    assert message.startswith(f"bash stops at this line: {words}")


@pytest.mark.programs
@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        TASKS,
        "#!/bin/zsh\nfi\n",
        "#!/usr/bin/env python3\nif x:\n",
        "fi\n",  # the shell that reads it is not known
        GOOD.replace("\n", "\r\n") + "fi\r\n",  # EB886 says what is wrong
        "#!/bin/bash\ncat <<EOF\na\n",  # bash warns, and goes on
        "#!/bin/bash\nshopt -s extglob\nrm !(a)\n",
    ],
)
def test_a_script_that_bash_reads_or_that_is_not_for_bash_has_no_mistake_of_syntax(text: str):
    assert syntax(text) == []


@pytest.mark.programs
@pytest.mark.parametrize(
    ("line", "severity"),
    [("exit 0", Severity.WARNING), ("exec srun ./run", Severity.WARNING), ("exec >log 2>&1", Severity.ERROR)],
)
def test_what_stands_below_the_end_of_a_script_is_not_sure_to_be_read(line: str, severity: Severity):
    assert [found for _, _, found in syntax(f"#!/bin/bash\n./run\n{line}\n(((\n")] == [severity]


@pytest.mark.programs
def test_a_script_is_checked_by_bash_before_the_rules(tmp_path: Path):
    (tmp_path / "job.sh").write_text(f"{GOOD}export NCCL_IB_DISABLE=1\nfi\n")
    syntax_error, other = lint_files([tmp_path / "job.sh"], ProcessRunner(os.environ))
    assert (syntax_error.code, other.code) == (LintCode.SYNTAX, LintCode.NCCL_FORCED)
    assert syntax_error.hint == f"`bash -n {tmp_path}/job.sh` checks it again"


def test_without_bash_the_rules_are_applied_alone(tmp_path: Path):
    (tmp_path / "job.sh").write_text(f"{GOOD}fi\n")
    assert lint_files([tmp_path / "job.sh"], Machine({})) == ()
