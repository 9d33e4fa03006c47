"""What ranks' exchanges take, and which ports they occupy: what those of any accelerators do."""

from __future__ import annotations

from ....machines.collective_cost import collective_s
from ....machines.collective_cost import fabric_among as fabric_of
from ...sim.collective_routes import ports_of, send

__all__ = ["collective_s", "fabric_of", "ports_of", "send"]
