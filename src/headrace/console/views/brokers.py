"""`/brokers`: this broker, who is connected, what is asked of it, and what it stands on."""

from headrace import __version__
from headrace.access.needs import Operation
from headrace.console import charts, needs, text
from headrace.console.registry import Ask, View, page
from headrace.console.views.overview import chart, memory_of
from headrace.metrics.counters import TICKS, Durations

_APIS = 20
_CLIENTS = 50


@page("Brokers", "/brokers", needs=(needs.server(Operation.DESCRIBE),))
async def brokers(ask: Ask) -> View:
    """The page of the broker that answers, with the others it knows of."""
    figures, sampler = ask.figures, ask.figures.sampler
    store, process = await figures.facts()
    counted = figures.counters.store
    now_s = figures.clusters.clock.now_ms() / 1000
    clients = sorted(figures.clients().items(), key=lambda one: (-one[1][1], one[0]))
    apis = sorted(
        (
            (listener.name, api)
            for listener in figures.counters.listeners
            for api in listener.apis.values()
            if any(api.slots)
        ),
        key=lambda one: -one[1].count,
    )[:_APIS]
    cells = {
        "uptime": "-" if process.started_seconds is None else text.span(max(0, int(now_s - process.started_seconds))),
        "resident": text.size(process.resident_bytes),
        "cpu": text.span(process.cpu_seconds),
        "fds": text.count(process.open_fds),
        "fds.of": "no limit" if process.max_fds is None else f"of {text.count(process.max_fds)}",
        "loop": quantile(figures.counters.loop_delays, 0.99),
        "store": "answers" if store is not None else "does not answer",
        "store.badge": f"badge {'stable' if store is not None else 'failed'}",
        "memory": text.size(None if store is None else store.memory_bytes),
        "memory.of": memory_of(None if store is None else store.memory_max_bytes),
        "replicas": text.count(None if store is None else store.replicas),
        "file": text.size(None if store is None else store.append_file_bytes),
        "file.ok": "-" if store is None else "written" if store.append_file_ok else "cannot be written",
        "appends": text.count(counted.appends),
        "append.p50": quantile(counted.append_durations, 0.5),
        "append.p99": quantile(counted.append_durations, 0.99),
        "refused": text.count(counted.refused),
        "reconnects": text.count(counted.reconnects),
        "openings": text.count(counted.openings),
        "journal": text.size(counted.journal_bytes) if counted.journal_bytes else "none",
        "journal.waiting": text.size(counted.journal_waiting),
        "disk": text.size(process.disk_free_bytes),
        "disk.of": "-" if process.disk_size_bytes is None else f"free of {text.size(process.disk_size_bytes)}",
        "disk.used": used(process.disk_free_bytes, process.disk_size_bytes),
        "memory.used": used(
            None if store is None else store.memory_max_bytes - store.memory_bytes,
            None if store is None else store.memory_max_bytes,
        ),
        "clients": text.count(len(clients)),
        "connections.spark": charts.spark(sampler.connections.last()),
        **chart("bytes", {"in": sampler.bytes_in.last(), "out": sampler.bytes_out.last()}),
    }
    cells["bytes.top"] = text.size(charts.top([sampler.bytes_in.last(), sampler.bytes_out.last()])) + "/s"
    for name, now in figures.connections.items():
        cells[f"listener.{name}"] = text.count(now())
    for number, (_, api) in enumerate(apis):
        cells |= {
            f"{number}.count": text.count(api.count),
            f"{number}.p50": quantile(api, 0.5),
            f"{number}.p99": quantile(api, 0.99),
            f"{number}.errors": text.count(sum(api.errors.values())),
        }
    for number, (_, (connections, requests)) in enumerate(clients[:_CLIENTS]):
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
        "clients": [text.name(host) for host, _ in clients[:_CLIENTS]],
        "more": max(0, len(clients) - _CLIENTS),
    }
    shape = (data["apis"], data["clients"], store is None)
    return View(template="brokers.html", title="Brokers", data=data, cells=cells, shape=shape)


def quantile(durations: Durations, share: float) -> str:
    """Below what this share lies; by powers of two, so it is the upper end."""
    count = durations.count
    if not count:
        return "-"
    seen = 0
    for slot, many in enumerate(durations.slots):
        seen += many
        if seen >= count * share:
            return f"≤ {text.span(2**slot / TICKS) if slot > 10 else f'{2**slot} µs'}"
    return "-"


def used(free: int | None, whole: int | None) -> str:
    """Percent that are used."""
    return "0" if free is None or not whole else str(min(100, max(0, round(100 * (whole - free) / whole))))
