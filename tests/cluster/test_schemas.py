"""One schema registry on several brokers."""

import json
import threading
from typing import Any

import pytest
from tests.harness.brokers import brokers_over
from tests.harness.waiting import wait_for
from tests.schema_registry.conftest import Api, record


@pytest.mark.parametrize("storage", ["redis", pytest.param("cluster", marks=pytest.mark.redis_cluster)])
def test_brokers_share_one_registry(storage: str) -> None:
    with brokers_over(storage, 3, schema_registry_enable=True) as running:
        one, other, third = (Api(each.schema_registry) for each in running.servers.values())
        number = one.register("t-value", record("a"))
        assert other.get(f"/schemas/ids/{number}")["schema"], "an unknown ID is looked for at once"
        assert other.get("/subjects/t-value/versions/1")["id"] == number
        assert third.register("t-value", record("a")) == number
        one.ok("PUT", "/config/t-value", {"compatibility": "FULL"})
        wait_for(lambda: other.call("GET", "/config/t-value")[0] == 200, "the level on the other broker")
        assert other.refused("POST", "/subjects/t-value/versions", {"schema": json.dumps(record("a", "b"))}) == (
            409,
            409,
        )

        found: list[dict[str, Any]] = []

        def register(api: Api, letter: str) -> None:
            for place in range(5):
                body = {"schema": json.dumps({"type": "fixed", "name": f"{letter}{place}", "size": 1})}
                found.append(api.ok("POST", "/subjects/many/versions", body))

        one.ok("PUT", "/config/many", {"compatibility": "NONE"})
        wait_for(lambda: other.call("GET", "/config/many")[0] == 200, "the level on the other broker")
        threads = [threading.Thread(target=register, args=each) for each in ((one, "A"), (other, "B"))]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert sorted(each["version"] for each in found) == list(range(1, 11))
        assert len({each["id"] for each in found}) == 10
        assert other.ok("DELETE", "/subjects/t-value") == [1]
        wait_for(lambda: one.get("/subjects") == ["many"], "the deletion on the first broker")
        wait_for(lambda: third.get("/subjects") == ["many"], "the deletion on the third broker")

        running.servers[1].restart()
        assert one.get("/subjects?deleted=true") == ["many", "t-value"]
