# SPDX-License-Identifier: Apache-2.0
"""What must every store keep to?

The rules are plain pytest functions over a fixture `store_world` that gives a `StoreWorld`. A
backend's test file registers this package for assertion rewriting, imports everything from it and
defines the fixture; after every test the fixture asserts `store.check().result() == []`.
"""

from penstock.testing.store_contract.acknowledging import *  # noqa: F403
from penstock.testing.store_contract.call_ends import *  # noqa: F403
from penstock.testing.store_contract.call_figures import *  # noqa: F403
from penstock.testing.store_contract.caps import *  # noqa: F403
from penstock.testing.store_contract.circumstances import *  # noqa: F403
from penstock.testing.store_contract.control import *  # noqa: F403
from penstock.testing.store_contract.counting import *  # noqa: F403
from penstock.testing.store_contract.edges import *  # noqa: F403
from penstock.testing.store_contract.effects import *  # noqa: F403
from penstock.testing.store_contract.enqueue import *  # noqa: F403
from penstock.testing.store_contract.journal import *  # noqa: F403
from penstock.testing.store_contract.learned_limits import *  # noqa: F403
from penstock.testing.store_contract.leasing import *  # noqa: F403
from penstock.testing.store_contract.limits import *  # noqa: F403
from penstock.testing.store_contract.lingering import *  # noqa: F403
from penstock.testing.store_contract.locks import *  # noqa: F403
from penstock.testing.store_contract.manifests import *  # noqa: F403
from penstock.testing.store_contract.operators import *  # noqa: F403
from penstock.testing.store_contract.plans import *  # noqa: F403
from penstock.testing.store_contract.preflights import *  # noqa: F403
from penstock.testing.store_contract.purging import *  # noqa: F403
from penstock.testing.store_contract.redaction import *  # noqa: F403
from penstock.testing.store_contract.runs import *  # noqa: F403
from penstock.testing.store_contract.schedules import *  # noqa: F403
from penstock.testing.store_contract.spending import *  # noqa: F403
from penstock.testing.store_contract.suspects import *  # noqa: F403
from penstock.testing.store_contract.ticks import *  # noqa: F403
from penstock.testing.store_contract.transitions import *  # noqa: F403
from penstock.testing.store_contract.voiding import *  # noqa: F403
from penstock.testing.store_contract.weights import *  # noqa: F403
from penstock.testing.store_contract.workers import *  # noqa: F403
from penstock.testing.store_contract.world import StoreWorld as StoreWorld
