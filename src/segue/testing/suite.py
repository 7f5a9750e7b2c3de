"""The whole contract as one class of tests."""

from __future__ import annotations

from .append import AppendTests, CheckOrderTests, CommitTests, HeadTests, StateTests, TotalsTests
from .attributes import ArchiveTests, CreateTests, UpdateTests
from .content import ContentTests
from .erasure import EraseTests, HollowTests, NothingLeftTests, SharedEraseTests
from .forks import ForkTests
from .handles import CapabilityTests, CheckTests, ClockTests, CloseTests
from .histories import HistoryTests
from .ids import IdTests, InheritedIdTests, RetryTests
from .lease import DeadHolderTests, ExpiryTests, InterruptTests, LeaseTests, PauseTests, ReleaseTests, RenewTests
from .listing import FilterTests, LifetimeTests, PageTests, ScopeListTests
from .names import NearTwinTests, OwnerTests
from .processes import CrashTests, ProcessTests
from .queue import QueueTests
from .races import ConcurrencyTests, RaceTests
from .reading import DamageTests, ReadTests, RefTests


class StoreSuite(
    AppendTests,
    CommitTests,
    HeadTests,
    CheckOrderTests,
    TotalsTests,
    StateTests,
    IdTests,
    RetryTests,
    InheritedIdTests,
    LeaseTests,
    ExpiryTests,
    RenewTests,
    ReleaseTests,
    PauseTests,
    InterruptTests,
    DeadHolderTests,
    QueueTests,
    ForkTests,
    HollowTests,
    EraseTests,
    SharedEraseTests,
    NothingLeftTests,
    ReadTests,
    DamageTests,
    RefTests,
    CreateTests,
    UpdateTests,
    ArchiveTests,
    PageTests,
    FilterTests,
    LifetimeTests,
    ScopeListTests,
    NearTwinTests,
    OwnerTests,
    ContentTests,
    ClockTests,
    CapabilityTests,
    CheckTests,
    CloseTests,
    RaceTests,
    ConcurrencyTests,
    HistoryTests,
    ProcessTests,
    CrashTests,
):
    """
    The contract of ``segue.store.Store``, a test a sentence.

    Six lines hold a store to it::

        from segue.testing import StoreSuite

        class TestMyStore(StoreSuite):
            def make_store(self, directory):
                return MyStore(directory)

    ``make_store`` is called many times with one directory: each call gives another handle on the same data.
    A store that keeps its data elsewhere uses the directory's path as a name for them.
    """
