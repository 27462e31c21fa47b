from headrace.topics.archive import app_id, begin_id, start_id


def test_names_have_the_topics_id_and_the_partition() -> None:
    assert (start_id("an-id", 3), app_id("an-id", 3)) == ("an-id:3", "headrace:an-id:3")
    assert begin_id("an-id", 3) == "headrace:an-id:3:start"
