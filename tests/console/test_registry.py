"""The registry of the console's views."""

from headrace.console import views
from headrace.console.registry import PAGES
from headrace.security.access.required_acls import ANYBODY

views.load()


def test_every_page_says_what_it_needs() -> None:
    assert {page.name for page in PAGES.values() if page.needs == ANYBODY} == set()
    assert {page.method for page in PAGES.values()} == {"GET", "POST"}
    assert [page.name for page in PAGES.values() if page.method == "POST"] == [
        "ProduceRecord", "CreateTopic", "AddPartitions", "AlterTopicConfig", "DeleteTopic", "ResetGroup", "ForgetRun",
        "SaveUser", "DeleteUser", "AddAcl", "RemoveAcl", "SetQuota", "RemoveQuota", "AbortTransaction",
    ]  # fmt: skip
