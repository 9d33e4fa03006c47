"""Which GPU this machine has, by the driver alone: importing torch takes seconds."""

import ctypes

# The catalogue's machine whose GPU has this name for the driver, with one GPU of it.
MACHINES = {
    "NVIDIA H100 80GB HBM3": "1x-h100-nvswitch",
    "NVIDIA H100 PCIe": "1x-h100-pcie",
    "NVIDIA H100 NVL": "1x-h100-nvl",
    "NVIDIA H200": "1x-h200-nvswitch",
    "NVIDIA H200 NVL": "1x-h200-nvl",
    "NVIDIA GH200 480GB": "1x-gh200",
    "NVIDIA B200": "1x-b200-nvswitch",
    "NVIDIA A100-SXM4-40GB": "1x-a100-nvswitch",
    "NVIDIA A100-SXM4-80GB": "1x-a100-80gb-nvswitch",
    "NVIDIA A100-PCIE-40GB": "1x-a100-pcie-40gb",
    "NVIDIA A100 80GB PCIe": "1x-a100-80gb-pcie-nvlink",
    "NVIDIA A10G": "1x-a10g-g5",
    "NVIDIA L4": "1x-l4-g2",
    "NVIDIA L40": "1x-l40-pcie",
    "NVIDIA L40S": "1x-l40s-pcie",
    "NVIDIA GeForce RTX 3090": "1x-rtx-3090-epyc",
    "NVIDIA GeForce RTX 4090": "1x-rtx-4090",
    "NVIDIA GeForce RTX 5090": "1x-rtx-5090",
    "Tesla T4": "1x-t4-g4dn",
    "Tesla V100-SXM2-16GB": "1x-v100-dgx1",
    "Tesla V100-SXM2-32GB": "1x-v100-nvlink",
    "Tesla V100-PCIE-16GB": "1x-v100-pcie",
}
NO_GPU = (
    "there is no GPU to measure{why}: run `make gpu` on a machine with one NVIDIA GPU, its driver "
    "and a torch that was built for CUDA; `make gpu EMULATE=1x-h100-nvswitch` tries it without"
)


class NoGpuError(RuntimeError):
    """There is no GPU, or none that predictions can be made for."""


def name_of_gpu() -> str:
    """What the driver calls the first GPU that this process sees. Raises NoGpuError without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoGpuError(NO_GPU.format(why=" (no driver: libcuda.so.1 is missing)")) from None
    count, device = ctypes.c_int(), ctypes.c_int()
    text = ctypes.create_string_buffer(256)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if failed or not count.value:
        raise NoGpuError(NO_GPU.format(why=f" (the driver answers with error {failed})"))
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(text, 256, device):
        raise NoGpuError(NO_GPU.format(why=" (the driver does not tell its name)"))
    return text.value.decode()


def machine_of(name: str) -> str:
    """The machine that predictions are made for. Raises NoGpuError for a GPU that is not known."""
    try:
        return MACHINES[name]
    except KeyError:
        raise NoGpuError(
            f"nothing is predicted for {name!r}: name the machine of the catalogue that has it, as "
            "in `make gpu MACHINE=1x-h100-nvswitch` (`python -m d2lpar machines` lists them)"
        ) from None
