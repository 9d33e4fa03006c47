"""All machines of the catalogue by name; the textbook's comes first."""

from __future__ import annotations

from . import clouds, desktops, servers

DEFAULT = servers.DEFAULT
CATALOGUE = {
    machine.name: machine for machine in (*servers.MACHINES, *desktops.MACHINES, *clouds.MACHINES)
}
