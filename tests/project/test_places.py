"""Tests that once failed in some places, in copies of this checkout at such places."""

import os

import pytest

from tests.support.places import PLACES, Place, run_tests

CHOSEN = (
    "tests/node/test_doctor.py::test_this_machine_as_an_ordinary_user",
    "tests/core/test_private.py::test_an_ordinary_user_is_told_who_owns_a_planted_log",
    "tests/core/test_private.py::test_a_work_folder_that_is_exchanged_during_the_work_leads_nowhere",
    "tests/core/test_cache.py::test_an_ordinary_user_removes_folders_that_cannot_be_entered",
    "tests/builder/test_hostile_scripts.py::test_the_packages_are_configured_in_a_namespace",
    "tests/run/test_container.py::test_another_python_is_kept_out_and_the_projects_own_folders_stay",
    "tests/layers/test_layer.py::test_a_damaged_layer_is_not_found",
    "tests/project/test_pages.py::test_commands_print_what_the_page_says[docs/trouble/gcc.md]",
)


@pytest.mark.programs
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to a user, and become one")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_tests_pass_wherever_the_checkout_lies(place: Place):
    run_tests(place, *CHOSEN)
