"""UpdateFeatures: there are none (KIP-584)."""

import pytest
from tests.harness.wire import Wire

from headrace.kafka.errors import Code
from headrace.protocol import messages as m


@pytest.mark.parametrize("version", [0, 1, 2])
def test_there_are_no_features_to_update(wire: Wire, version: int) -> None:
    request = m.UpdateFeaturesRequest
    update = request.FeatureUpdateKey(feature="transaction.version", max_version_level=2, upgrade_type=1)
    answer = wire.ask(request(feature_updates=[update]), version)
    assert answer.error_code == Code.INVALID_UPDATE_VERSION
    assert answer.error_message == (
        "The update failed for all features since the following feature had an error: Invalid update version 2 for "
        "feature transaction.version. Local controller 1 does not support this feature."
    )
    assert answer.results == []
    assert wire.ask(request(feature_updates=[]), version).error_code == Code.NONE
