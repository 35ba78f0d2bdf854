"""The tools that a build needs: a missing or too-old one is named, with the reason and the way to get it."""

import pytest

from envbuilder.core.findings import Severity
from envbuilder.runners.required_tools import BWRAP, Tool, check_tools
from tests.support.runner import SAYS, Machine


def test_a_machine_with_all_tools_has_no_findings():
    assert check_tools((BWRAP,), Machine(SAYS)) == ()


def test_a_missing_tool_is_named_with_its_reason_and_its_package():
    (found,) = check_tools((BWRAP,), Machine({}))
    assert (found.code, found.severity) == ("EB801", Severity.ERROR)
    assert found.message == "`bwrap` is needed to build in a sandbox, and it is not installed or does not run"
    assert found.hint == "`apt-get install bubblewrap`; `scripts/setup` installs all of them on Debian 12"


def test_a_tool_that_does_not_run_is_as_good_as_missing():
    (found,) = check_tools([BWRAP], Machine(SAYS, broken=("bwrap",)))
    assert found.code == "EB801"


@pytest.mark.parametrize(
    ("tool", "said", "message"),
    [
        (BWRAP, "bubblewrap 0.3.9\n", "`bwrap` 0.4 or newer is needed to build in a sandbox; found 0.3.9"),
        (BWRAP, "", "`bwrap` 0.4 or newer is needed to build in a sandbox; found no version"),
        (BWRAP, "bubblewrap (version unknown)", "`bwrap` 0.4 or newer is needed to build in a sandbox; found no version"),
    ],
)  # fmt: skip
def test_a_tool_that_is_too_old_says_what_is_needed_and_what_is_there(tool, said, message):
    (found,) = check_tools([tool], Machine({tool.name: said}))
    assert (found.code, found.message) == ("EB802", message)
    assert tool.package in found.hint


@pytest.mark.parametrize("version", ["0.4", "0.4.0", "0.10", "1.0"])
def test_versions_are_compared_as_numbers(version):
    assert check_tools([BWRAP], Machine({"bwrap": f"bubblewrap {version}\n"})) == ()


def test_a_tool_of_any_version_needs_no_version():
    tool = Tool(name="x", why="do it", package="x")
    assert check_tools([tool], Machine({"x": "hello\n"})) == ()


def test_a_tool_is_asked_in_its_own_way():
    runner = Machine({"x": "x 1.0\n"})
    check_tools([Tool(name="x", why="do it", package="x", version=("-V", "--short"))], runner)
    assert [command.argv for command in runner.commands] == [("x", "-V", "--short")]
