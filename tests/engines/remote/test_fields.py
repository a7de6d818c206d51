"""The document of what leaves a site is made from the tasks."""

from pathlib import Path

from fedgrem.engines.remote.fields import TITLES, markdown, tables
from fedgrem.fit.private_site import TASKS as PRIVATE_TASKS
from fedgrem.fit.tasks import AT_HOME, TASKS

DOCUMENT = Path(__file__).parents[3] / "docs" / "what-leaves.md"


def test_the_document_lists_what_the_tasks_send():
    text = DOCUMENT.read_text(encoding="utf-8")
    written = text[text.index("<!-- generated -->\n") : text.index("<!-- end -->")].removeprefix("<!-- generated -->\n")
    assert written == markdown(), "run: python -m fedgrem.engines.remote.fields"


def test_every_task_of_a_fit_without_given_starts_is_listed():
    assert set(TITLES) - {"census"} == {*TASKS, *PRIVATE_TASKS} - AT_HOME - {"size"}


def test_no_reply_holds_anything_beyond_its_words():
    for title, rows in tables():
        assert rows, title
        assert all(words for _, _, words in rows)
