"""What a command told on the screen."""

import re


def assert_one_error(err, message):
    """One line of error that holds ``message``, and no traceback."""
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert re.search(message, lines[0])
    assert "Traceback" not in err
