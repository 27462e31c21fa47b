"""Forms that create, alter and delete topics: `/new-topic` and `/topics/NAME/edit`."""

from typing import Any

from headrace.console import text
from headrace.console.kafka_client import Rejected, check_writes, results, whole_number
from headrace.console.registry import Redirect, Refused, View, ViewRequest, page, topic_resource, topic_rule
from headrace.console.views.topics import EDITING, live_topic
from headrace.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)
from headrace.security.access.required_acls import CLUSTER_NAME, Operation, Resource, ResourceType, Rule
from headrace.topics.config import describe

_TIMEOUT_MS = 10_000
_TOPIC = 2
"""Type of a topic in requests for configurations."""
_SET, _DELETE = 0, 1
_DONE = {"partitions": "The topic has more partitions.", "config": "The configuration was changed."}

_CREATE = Rule(
    operation=Operation.CREATE,
    type=ResourceType.CLUSTER,
    resources=lambda ask: (Resource(ResourceType.CLUSTER, CLUSTER_NAME, ask.broker.cluster),),
    instead=(Operation.CREATE, ResourceType.TOPIC),
)
"""Create on any topic is enough to see the form. The request is authorized for its name."""


@page("NewTopic", "/new-topic", needs=(_CREATE,), live=False)
async def new_topic(ask: ViewRequest) -> View:
    """Return the form for a topic."""
    check_writes(ask)
    return _new(ask)


@page("CreateTopic", "/new-topic", method="POST", needs=(_CREATE,), live=False)
async def create_topic(ask: ViewRequest) -> View:
    """Create a topic, or return the form with the reason."""
    form = ask.form
    try:
        name = form.get("name", "").strip()
        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=_number(form, "partitions", "Partitions"),
            replication_factor=_number(form, "replication", "Replication factor"),
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
                for key, value in _assignments(form.get("config", ""))
            ],
        )
        await results(ask, CreateTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS), "topics")
    except Rejected as rejected:
        return _new(ask, str(rejected))
    # A client without Describe on the topic cannot open its page.
    may = ask.may(topic_rule(Operation.DESCRIBE), topic_resource(ask, name))
    raise Redirect(text.topic(name, ask.broker.cluster) if may else text.link("/topics", ask.broker.cluster))


def _new(ask: ViewRequest, wrong: str = "") -> View:
    settings = ask.broker.settings
    data = {
        "self": text.link("/new-topic", ask.broker.cluster),
        "given": {name: ask.form.get(name, "") for name in ("name", "partitions", "replication", "config")},
        "partitions": settings.num_partitions,
        "replication": settings.default_replication_factor,
        "keys": [(entry.key.name, entry.key.doc) for entry in _entries(ask, {})],
        "wrong": wrong,
    }
    return View(template="new-topic.html", title="Create a topic", data=data, forms=True, status=400 if wrong else 200)


def _number(form: Any, field: str, what: str) -> int:
    given = form.get(field, "").strip()
    return whole_number(given, what) if given else -1


def _assignments(given: str) -> list[tuple[str, str]]:
    """Return configurations from lines such as `retention.ms=3600000`. Raises Rejected."""
    found = []
    for line in given.splitlines():
        if not line.strip():
            continue
        key, equals, value = line.partition("=")
        if not (key.strip() and equals):
            raise Rejected(f"Configuration: expected lines such as retention.ms=3600000, found {line[:100]!r}.")
        found.append((key.strip(), value.strip()))
    return found


def _entries(ask: ViewRequest, config: Any) -> list[Any]:
    entries = describe(config, ask.broker.settings.topic_defaults)
    return sorted((each for each in entries if each.key.effective), key=lambda each: each.key.name)


@page("EditTopic", "/topics/{name:path}/edit", needs=(topic_rule(Operation.DESCRIBE),), live=False)
async def edit_topic(ask: ViewRequest) -> View:
    """Return the forms for a topic."""
    check_writes(ask)
    if not any(_may(ask, each) for each in EDITING):
        raise Refused(f"{ask.principal} may not Alter, AlterConfigs or Delete Topic {ask.path['name']}.")
    return _edit(ask)


@page(
    "AddPartitions",
    "/topics/{name:path}/partitions",
    method="POST",
    needs=(topic_rule(Operation.ALTER),),
    live=False,
)
async def add_partitions(ask: ViewRequest) -> View:
    """Raise the number of partitions."""
    name = live_topic(ask).topic.name
    try:
        count = whole_number(ask.form.get("count", ""), "Partitions")
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        await results(ask, CreatePartitionsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS), "results")
    except Rejected as rejected:
        return _edit(ask, partitions=str(rejected))
    raise Redirect(text.edit(name, ask.broker.cluster, done="partitions"))


@page(
    "AlterTopicConfig",
    "/topics/{name:path}/config",
    method="POST",
    needs=(topic_rule(Operation.ALTER_CONFIGS),),
    live=False,
)
async def alter_config(ask: ViewRequest) -> View:
    """Set one key of the configuration, or restore its default."""
    name = live_topic(ask).topic.name
    key, value = ask.form.get("key", "").strip(), ask.form.get("value", "")
    restores = bool(ask.form.get("default"))
    change = IncrementalAlterConfigsRequest.AlterableConfig(
        name=key, config_operation=_DELETE if restores else _SET, value=None if restores else value
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=_TOPIC, resource_name=name, configs=[change]
    )
    try:
        await results(ask, IncrementalAlterConfigsRequest(resources=[resource]), "responses")
    except Rejected as rejected:
        return _edit(ask, config=str(rejected))
    raise Redirect(text.edit(name, ask.broker.cluster, done="config"))


@page(
    "DeleteTopic",
    "/topics/{name:path}/delete",
    method="POST",
    needs=(topic_rule(Operation.DELETE),),
    live=False,
)
async def delete_topic(ask: ViewRequest) -> View:
    """Delete a topic whose name was typed."""
    name = live_topic(ask).topic.name
    try:
        if ask.form.get("confirm", "").strip() != name:
            raise Rejected(f"Type {name} to delete this topic with its records.")
        topic = DeleteTopicsRequest.DeleteTopicState(name=name)
        await results(ask, DeleteTopicsRequest(topics=[topic], timeout_ms=_TIMEOUT_MS), "responses")
    except Rejected as rejected:
        return _edit(ask, delete=str(rejected))
    raise Redirect(text.link("/topics", ask.broker.cluster))


def _may(ask: ViewRequest, operation: Operation) -> bool:
    return ask.may(topic_rule(operation), topic_resource(ask, ask.path["name"]))


def _edit(ask: ViewRequest, **wrong: str) -> View:
    live = live_topic(ask)
    name, cluster = live.topic.name, ask.broker.cluster
    forms = ("partitions", "config", "delete")
    entries = _entries(ask, live.topic.config)
    data = {
        "shown": text.name(name),
        "topic": text.topic(name, cluster),
        "paths": {each: text.link(text.topic(name) + "/" + each, cluster) for each in forms},
        "may": dict(zip(forms, (_may(ask, each) for each in EDITING), strict=True)),
        "wrong": {each: wrong.get(each, "") for each in forms},
        "done": "" if wrong else _DONE.get(ask.query.get("done", ""), ""),
        "count": len(live.partitions),
        "given": {each: ask.form.get(each, "") for each in ("count", "key", "value", "confirm")},
        "config": [
            {"name": each.key.name, "value": text.name(each.value), "source": each.source.value, "doc": each.key.doc}
            for each in entries
        ],
    }
    title = f"Edit {text.name(name)}"
    return View(template="edit-topic.html", title=title, data=data, forms=True, status=400 if wrong else 200)
