"""Tests of one `xdist_group` run in one worker, so that what they share is made once."""

import pytest


@pytest.mark.xdist_group("named")
def test_a_worker_knows_a_test_by_its_group(request):
    if not hasattr(request.config, "workerinput"):
        pytest.skip("groups exist in the workers of `pytest -n` only")
    assert request.node.nodeid.endswith("@named"), "this pytest and this pytest-xdist do not keep groups together"
