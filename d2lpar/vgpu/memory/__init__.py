"""The memory of virtual devices and of their host: allocated, freed, page-locked."""
