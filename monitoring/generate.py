"""Writes the Grafana dashboard: `make docs`. `--check` only tells whether it is current."""

import sys
from pathlib import Path

import msgspec
from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.builders.common import VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh

TARGET = Path(__file__).parent / "headrace.dashboard.json"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH, _HEIGHT = 8, 8
"""Three panels in a row: the grid has 24 columns."""
_MINE = 'instance=~"$instance"'


class Panel(msgspec.Struct, frozen=True):
    """A graph."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """(PromQL, legend), with `$__rate_interval` as Grafana has it."""
    doc: str = ""


def _one(title: str, unit: str, query: str, legend: str, doc: str = "") -> Panel:
    return Panel(title, unit, ((query, legend),), doc)


def _rate(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{{{_MINE}}}[$__rate_interval]))"


def _sum(metric: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({metric}{{{_MINE}}})"


def _each(metric: str) -> str:
    return f"{metric}{{{_MINE}}}"


def _process(metric: str) -> str:
    return f'{metric}{{job="headrace",{_MINE}}}'


def _quantile(quantile: float, metric: str, *by: str) -> str:
    return f"histogram_quantile({quantile}, {_rate(f'{metric}_bucket', 'le', *by)})"


def _percentiles(metric: str) -> tuple[tuple[str, str], ...]:
    return (_quantile(0.99, metric), "99th percentile"), (_quantile(0.5, metric), "median")


def _topic(title: str, unit: str, metric: str) -> Panel:
    return _one(title, unit, _rate(metric, "cluster", "topic"), _TOPIC)


_TOPIC, _GROUP, _SERVER = "{{cluster}} {{topic}}", "{{cluster}} {{group}}", "{{instance}}"
_WITHOUT = "Without Redis."

_REQUESTS = (
    _one("Requests", "reqps", _rate("headrace_requests_total", "listener", "api") + " > 0", "{{listener}} {{api}}"),
    _one(
        "Answers with an error",
        "reqps",
        _rate("headrace_request_errors_total", "api", "error"),
        "{{api}} {{error}}",
        "Many are the protocol at work, such as MEMBER_ID_REQUIRED, or a client's mistake. Watch KAFKA_STORAGE_ERROR, "
        "COORDINATOR_NOT_AVAILABLE and UNKNOWN_SERVER_ERROR.",
    ),
    _one(
        "Duration, 99th percentile",
        "s",
        _quantile(0.99, "headrace_request_duration_seconds", "api"),
        "{{api}}",
        "Fetch and JoinGroup wait for others: that is in it.",
    ),
    _one("Connections", "short", _each("headrace_connections"), "{{instance}} {{listener}}"),
    Panel(
        "Event loop delay",
        "s",
        _percentiles("headrace_event_loop_delay_seconds"),
        "How long every request waits at worst.",
    ),
    _one(
        "Series missing here",
        "short",
        _each("headrace_metrics_series_excess"),
        _SERVER,
        "More than 0: raise metrics.max.series.",
    ),
)
_TOPICS = (
    _topic("Records in", "cps", "headrace_topic_records_in_total"),
    _topic("Bytes in", "Bps", "headrace_topic_bytes_in_total"),
    _one(
        "Records kept",
        "short",
        " - ".join(_sum(f"headrace_log_{place}_offset", "cluster", "topic") for place in ("end", "start")),
        _TOPIC,
        "Offsets between log start and log end; those of native topics do not count records.",
    ),
    _topic("Records out", "cps", "headrace_topic_records_out_total"),
    _topic("Bytes out", "Bps", "headrace_topic_bytes_out_total"),
)
_GROUPS = (
    _one(
        "Lag",
        "short",
        _sum("headrace_group_lag", "cluster", "group", "topic"),
        f"{_GROUP} {{{{topic}}}}",
        "Records that are still to be read.",
    ),
    _one(
        "Seconds behind",
        "s",
        f"max by (cluster, group, topic) ({_each('headrace_group_lag_seconds')})",
        f"{_GROUP} {{{{topic}}}}",
        "Age of the record that a group reads next.",
    ),
    _one("Members", "short", _sum("headrace_group_members", "cluster", "group"), _GROUP),
    _one(
        "Rebalances in 15 minutes",
        "short",
        f"sum by (cluster, group) (increase({_each('headrace_group_rebalances_total')}[15m]))",
        _GROUP,
    ),
    Panel(
        "Assignments by the server",
        "s",
        _percentiles("headrace_group_assignment_duration_seconds"),
        "Time that computing an assignment takes. Nothing else runs during it.",
    ),
    _one("Groups", "short", _sum("headrace_groups", "type", "state"), "{{type}} {{state}}"),
)
_SHARES = (
    _one(
        "Records held",
        "short",
        _sum("headrace_share_held_records", "cluster", "group", "topic"),
        f"{_GROUP} {{{{topic}}}}",
        "Acquired by members, and not acknowledged.",
    ),
    Panel(
        "Deliveries",
        "cps",
        (
            (_rate("headrace_share_acquired_records_total", "instance"), "all {{instance}}"),
            (_rate("headrace_share_redelivered_records_total", "instance"), "repeated {{instance}}"),
        ),
    ),
    Panel(
        "Lost locks, and delivery limits",
        "cps",
        (
            (_rate("headrace_share_lock_timeouts_total", "instance"), "lock timeouts {{instance}}"),
            (_rate("headrace_share_delivery_limits_total", "instance"), "records at the limit {{instance}}"),
        ),
        "Members are too slow, or cannot process a record.",
    ),
    _one("Sessions", "short", _each("headrace_share_sessions"), "{{cluster}} {{instance}}"),
    Panel(
        "Dead letters",
        "short",
        (
            (_each("headrace_dead_letters_waiting"), "waiting {{instance}}"),
            (_rate("headrace_dead_letters_total", "instance"), "copied per second {{instance}}"),
            (_rate("headrace_dead_letter_failures_total", "instance"), "failures per second {{instance}}"),
        ),
        "Records that wait hold their place in the share partition. The log of the server has the reason.",
    ),
)
_TRANSACTIONS = (
    Panel(
        "Open transactions",
        "short",
        (
            (_sum("headrace_transactions", "instance"), "open {{instance}}"),
            (_sum("headrace_transactions_overdue", "instance"), "above their timeout {{instance}}"),
        ),
    ),
    _one(
        "Oldest transaction",
        "s",
        f"max by (instance, cluster) ({_each('headrace_transaction_oldest_seconds')})",
        "{{instance}} {{cluster}}",
    ),
    _one(
        "Last stable offset lag",
        "short",
        f"max by (cluster, topic) ({_each('headrace_last_stable_offset_lag')})",
        _TOPIC,
        "Records that readers of committed records wait for.",
    ),
    Panel("Verification", "s", _percentiles("headrace_transaction_verification_seconds")),
    _one("Partitions with late transactions", "short", _each("headrace_late_transaction_partitions"), _SERVER),
    _one("Aborted transactions in memory", "short", _each("headrace_aborted_transactions"), _SERVER),
)
_STORAGE = (
    Panel(
        "Redis memory",
        "bytes",
        (
            (_each("headrace_store_memory_bytes"), "used {{instance}}"),
            (_each("headrace_store_memory_max_bytes") + " > 0", "maxmemory {{instance}}"),
        ),
    ),
    Panel(
        "Appends",
        "ops",
        (
            (_rate("headrace_store_appends_total", "instance"), "taken {{instance}}"),
            (_rate("headrace_store_append_failures_total", "instance"), "refused {{instance}}"),
        ),
    ),
    Panel("Append duration", "s", _percentiles("headrace_store_append_duration_seconds")),
    Panel(
        "Reconnects and openings",
        "short",
        (
            (_each("headrace_store_reconnects_total"), "reconnects {{instance}}"),
            (_each("headrace_store_openings_total"), "partitions opened {{instance}}"),
            (_each("headrace_unopened_partitions"), "partitions not open {{instance}}"),
        ),
    ),
    Panel(
        "Files",
        "bytes",
        (
            (_each("headrace_store_append_file_bytes"), "append-only file {{instance}}"),
            (_each("headrace_store_journal_waiting_bytes"), "journal, waiting {{instance}}"),
        ),
    ),
    _one("Replicas", "short", _each("headrace_store_replicas"), _SERVER),
    _one("Brokers alive", "short", _each("headrace_brokers"), _SERVER),
)
_MACHINE = (
    _one("CPU", "short", f"rate({_process('process_cpu_seconds_total')}[$__rate_interval])", _SERVER, _WITHOUT),
    _one("Memory", "bytes", _process("process_resident_memory_bytes"), _SERVER, _WITHOUT),
    Panel(
        "File descriptors",
        "short",
        ((_process("process_open_fds"), "open {{instance}}"), (_process("process_max_fds"), "allowed {{instance}}")),
    ),
    Panel(
        "Disk",
        "bytes",
        (
            (_each("headrace_disk_free_bytes"), "free {{instance}}"),
            (_each("headrace_disk_size_bytes"), "size {{instance}}"),
        ),
    ),
    _one("Log lines lost", "short", _each("headrace_log_lines_lost_total"), _SERVER),
)
_ROWS = (
    ("Requests", _REQUESTS), ("Topics", _TOPICS), ("Groups", _GROUPS), ("Share groups", _SHARES),
    ("Transactions", _TRANSACTIONS), ("Storage", _STORAGE), ("Machine", _MACHINE),
)  # fmt: skip


def _graph(panel: Panel) -> timeseries.Panel:
    graph = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.doc)
        .unit(panel.unit)
        .datasource(_SOURCE)
        .min(0)
        .span(_WIDTH)
        .height(_HEIGHT)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs([])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for number, (query, legend) in enumerate(panel.queries):
        graph = graph.with_target(
            prometheus.Dataquery().expr(query).legend_format(legend).ref_id("ABC"[number]).range().datasource(_SOURCE)
        )
    return graph


def page() -> str:
    """The dashboard as Grafana imports it."""
    made = (
        dashboard.Dashboard("Headrace")
        .uid("headrace")
        .tags(["headrace", "kafka"])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("instance")
            .label("Server")
            .datasource(_SOURCE)
            .query("label_values(headrace_info, instance)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    )
    for title, panels in _ROWS:
        made = made.with_row(dashboard.Row(title))
        for panel in panels:
            made = made.with_panel(_graph(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def main() -> int:
    """Write the dashboard; with `--check` write nothing, and return 1 when it is not current."""
    text = page()
    if TARGET.exists() and TARGET.read_text("utf-8") == text:
        return 0
    if "--check" in sys.argv:
        print(f"monitoring/{TARGET.name} is not what the code says: run `make docs`", file=sys.stderr)
        return 1
    TARGET.write_text(text, "utf-8")
    print(f"wrote monitoring/{TARGET.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
