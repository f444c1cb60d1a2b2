"""A browser for the tests of the dashboard."""

from tests.services.programs import Program, Wanted, find

WANTED = Wanted(
    component="Chromium",
    variable="SHIFTWORK_TEST_CHROMIUM",
    names=("chromium", "chromium-browser", "google-chrome"),
    debian="chromium",
)


def chromium() -> Program:
    """The machine's own, or one unpacked from Debian's packages."""
    return find(WANTED)
