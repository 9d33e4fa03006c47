"""Machines to simulate: their parts, a catalogue of real ones, files of them, and this machine."""

from .catalogue import A100, ACCELERATORS, CATALOGUE, DEFAULT, H100, NETWORKS, V100
from .hardware import Accelerator, Host, Link, Machine
from .lookup import Named, load, machine, save, this_machine

__all__ = [
    "A100",
    "ACCELERATORS",
    "CATALOGUE",
    "DEFAULT",
    "H100",
    "NETWORKS",
    "V100",
    "Accelerator",
    "Host",
    "Link",
    "Machine",
    "Named",
    "load",
    "machine",
    "save",
    "this_machine",
]
