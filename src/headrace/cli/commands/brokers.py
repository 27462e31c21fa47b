"""`headrace brokers`: list the brokers of a cluster."""

from collections import Counter

import click

from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.command import command
from headrace.cli.output import print_json, print_table
from headrace.text.escaping import shown


@command(
    "brokers",
    examples="""
    headrace brokers
    headrace brokers --json | jq -r '.brokers[].address'
    """,
)
@client_options
def brokers(kafka: KafkaServer, as_json: bool) -> None:
    """List the brokers of the cluster, their advertised addresses, and the number of partitions that each leads."""
    client = Client(kafka)
    cluster = client.result(client.admin.describe_cluster(), "describe the cluster")
    leads = Counter(partition.leader for topic in client.topics.values() for partition in topic.partitions.values())
    controller = cluster.controller.id if cluster.controller is not None else None
    rows = [
        {
            "broker": node.id,
            "address": f"[{node.host}]:{node.port}" if ":" in node.host else f"{node.host}:{node.port}",
            "rack": node.rack,
            "controller": node.id == controller,
            "partitions": leads[node.id],
        }
        for node in sorted(cluster.nodes, key=lambda node: int(node.id))
    ]
    if as_json:
        print_json({"cluster": cluster.cluster_id, "brokers": rows})
        return
    click.echo(f"cluster {shown(cluster.cluster_id)}")
    print_table(
        [">broker", "address", "rack", "controller", ">partitions"],
        [[*list(row.values())[:3], "yes" if row["controller"] else "no", row["partitions"]] for row in rows],
    )
