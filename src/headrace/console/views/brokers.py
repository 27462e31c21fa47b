"""`/brokers`: this broker, its connections, requests and environment."""

from math import isnan

from headrace import __version__
from headrace.console import charts, text
from headrace.console.registry import View, ViewRequest, cluster_rule, page
from headrace.console.views.overview import answering, chart
from headrace.metrics.counters import (
    TICKS,
    ApiCounters,
    ConnectedClient,
    Counters,
    Durations,
    ProcessFacts,
    StoreCounters,
    StoreFacts,
)
from headrace.security.access.required_acls import Operation

_APIS = 20
_CLIENTS = 50


@page("Brokers", "/brokers", needs=(cluster_rule(Operation.DESCRIBE),))
async def brokers(ask: ViewRequest) -> View:
    """Return the page of this broker."""
    figures, sampler = ask.figures, ask.figures.sampler
    store, process = await figures.facts()
    clients = sorted(figures.clients().items(), key=lambda one: (-one[1][1], one[0]))
    shown, apis = clients[:_CLIENTS], _busiest_apis(figures.counters)
    cells = {
        **_machine(process, figures.clusters.clock.now_ms() / 1000),
        "cpu": _percent(sampler.cpu.now),
        "loop": quantile(figures.counters.loop_delays, 0.99),
        **_storage(store),
        **_stored(figures.counters.store),
        "clients": text.count(len(clients)),
        "connections.spark": charts.spark(sampler.connections.last()),
        **chart(ask, "bytes", {"in": sampler.bytes_in, "out": sampler.bytes_out}, lambda most: text.size(most) + "/s"),
    }
    for name, now in figures.connections.items():
        cells[f"listener.{name}"] = text.count(now())
    for number, (_, api) in enumerate(apis):
        cells |= {
            f"{number}.count": text.count(api.count),
            f"{number}.p50": quantile(api, 0.5),
            f"{number}.p99": quantile(api, 0.99),
            f"{number}.errors": text.count(api.failures),
        }
    for number, (_, (connections, requests)) in enumerate(shown):
        cells[f"client.{number}.connections"] = text.count(connections)
        cells[f"client.{number}.requests"] = text.count(requests)
    data = {
        "id": ask.broker.node_id,
        "cluster_id": ask.broker.cluster_id,
        "version": __version__,
        "storage": text.name(figures.storage),
        "embedded": figures.data is not None,
        "data": text.name(str(figures.data)) if figures.data is not None else "",
        "listeners": [(name, figures.addresses.get(name, "")) for name in figures.connections],
        "apis": [(listener, api.name) for listener, api in apis],
        "clients": [_client(client) for client, _ in shown],
        "more": len(clients) - len(shown),
    }
    shape = (data["apis"], data["clients"], store is None)
    return View(template="brokers.html", title="Brokers", data=data, cells=cells, shape=shape)


def _client(client: ConnectedClient) -> tuple[str, str, str]:
    return text.name(client.client_id), text.name(client.software), text.name(client.host)


def _percent(value: float) -> str:
    return "-" if isnan(value) else f"{value:.0f}%" if value >= 10 else f"{value:.1f}%"


def _busiest_apis(counters: Counters) -> list[tuple[str, ApiCounters]]:
    asked = [
        (listener.name, api) for listener in counters.listeners for api in listener.apis.values() if any(api.slots)
    ]
    return sorted(asked, key=lambda one: -one[1].count)[:_APIS]


def _machine(process: ProcessFacts, now_s: float) -> dict[str, str]:
    started_s = process.started_seconds
    return {
        "uptime": "-" if started_s is None else text.span(max(0, int(now_s - started_s))),
        "resident": text.size(process.resident_bytes),
        "cpu.of": f"of one core, {text.span(process.cpu_seconds)} in all",
        "fds": text.count(process.open_fds),
        "fds.of": "no limit" if process.max_fds is None else f"of {text.count(process.max_fds)}",
        "disk": text.size(process.disk_free_bytes),
        "disk.of": "-" if process.disk_size_bytes is None else f"free of {text.size(process.disk_size_bytes)}",
    }


def _storage(store: StoreFacts | None) -> dict[str, str]:
    cells = {**answering(store), "store.badge": f"badge {'stable' if store is not None else 'failed'}"}
    if store is None:
        return cells | dict.fromkeys(("replicas", "file", "file.ok"), "-")
    return cells | {
        "replicas": text.count(store.replicas),
        "file": text.size(store.append_file_bytes),
        "file.ok": "last write succeeded" if store.append_file_ok else "last write failed",
    }


def _stored(counted: StoreCounters) -> dict[str, str]:
    return {
        "appends": text.count(counted.appends),
        "append.p50": quantile(counted.append_durations, 0.5),
        "append.p99": quantile(counted.append_durations, 0.99),
        "refused": text.count(counted.refused),
        "reconnects": text.count(counted.reconnects),
        "openings": text.count(counted.openings),
        "journal": text.size(counted.journal_bytes) if counted.journal_bytes else "none",
        "journal.waiting": text.size(counted.journal_waiting),
    }


def quantile(durations: Durations, share: float) -> str:
    """Return the upper bound of a quantile. Buckets are powers of two."""
    count = durations.count
    if not count:
        return "-"
    seen = 0
    for slot, many in enumerate(durations.slots):
        seen += many
        if seen >= count * share:
            return f"≤ {text.span(2**slot / TICKS) if slot > 10 else f'{2**slot} µs'}"
    return "-"
