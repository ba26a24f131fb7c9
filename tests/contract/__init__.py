# SPDX-License-Identifier: Apache-2.0
"""The store contract: the rules that every store keeps to.

The rules are plain pytest functions over a fixture `store_world` that gives a `StoreWorld`;
`test_store_contract.py` runs them over every store. After every test the fixture asserts
`store.check().result() == []`.
"""

from tests.contract.acknowledging import *  # noqa: F403
from tests.contract.apps import *  # noqa: F403
from tests.contract.call_ends import *  # noqa: F403
from tests.contract.call_figures import *  # noqa: F403
from tests.contract.caps import *  # noqa: F403
from tests.contract.circumstances import *  # noqa: F403
from tests.contract.control import *  # noqa: F403
from tests.contract.cooldowns import *  # noqa: F403
from tests.contract.counting import *  # noqa: F403
from tests.contract.detached import *  # noqa: F403
from tests.contract.edges import *  # noqa: F403
from tests.contract.effects import *  # noqa: F403
from tests.contract.enqueue import *  # noqa: F403
from tests.contract.journal import *  # noqa: F403
from tests.contract.learned_limits import *  # noqa: F403
from tests.contract.leasing import *  # noqa: F403
from tests.contract.limits import *  # noqa: F403
from tests.contract.locks import *  # noqa: F403
from tests.contract.manifests import *  # noqa: F403
from tests.contract.operators import *  # noqa: F403
from tests.contract.pauses import *  # noqa: F403
from tests.contract.plans import *  # noqa: F403
from tests.contract.preflights import *  # noqa: F403
from tests.contract.purging import *  # noqa: F403
from tests.contract.redaction import *  # noqa: F403
from tests.contract.rerunning import *  # noqa: F403
from tests.contract.results import *  # noqa: F403
from tests.contract.runs import *  # noqa: F403
from tests.contract.schedules import *  # noqa: F403
from tests.contract.spending import *  # noqa: F403
from tests.contract.suspects import *  # noqa: F403
from tests.contract.ticks import *  # noqa: F403
from tests.contract.transitions import *  # noqa: F403
from tests.contract.voiding import *  # noqa: F403
from tests.contract.weights import *  # noqa: F403
from tests.contract.workers import *  # noqa: F403
from tests.contract.world import StoreWorld as StoreWorld
