"""All unit tests, in copies of this checkout at other places. `tests/project/test_places.py` runs some of them on every change."""

import pytest

from tests.support.places import PLACES, Place, run_tests

pytestmark = [pytest.mark.builds, pytest.mark.release]
LEFT_OUT = ("e2e", "attacks", "project/test_places.py")


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_unit_tests_pass_wherever_the_checkout_lies(place: Place):
    run_tests(place, "tests", *(f"--ignore=tests/{name}" for name in LEFT_OUT), history=True)
