"""All accelerators of the catalogue by name, from old to new.

Peaks are dense. Matrices of float16 and bfloat16 are multiplied on tensor cores where there are
some, summed in fp32 as PyTorch has it; float64 uses them on A100, H100 and those of their kind.
"float8_e4m3" is that of fp8 products. A rate that is missing is that of float32.
"""

from __future__ import annotations

from . import ada, amd, ampere, blackwell, early, hopper

ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        early.I7_6700K,
        early.K80,
        early.TITAN_X,
        early.TITAN_X_PASCAL,
        early.P100,
        early.P100_PCIE,
        early.P40,
        early.V100,
        early.V100_SXM2_32GB,
        early.V100_32GB,
        early.V100_PCIE,
        early.QUADRO_GV100,
        early.GTX_1660_TI,
        early.RTX_2080_TI,
        early.QUADRO_RTX_6000,
        early.TITAN_RTX,
        early.T4,
        ampere.RTX_3060_LAPTOP,
        ampere.RTX_3080_TI,
        ampere.RTX_3090,
        ampere.RTX_3090_TI,
        ampere.RTX_A5000,
        ampere.RTX_A6000,
        ampere.A10,
        ampere.A10G,
        ampere.A100,
        ampere.A100_80GB,
        ampere.A100_PCIE_40GB,
        ampere.A100_PCIE_80GB,
        ada.RTX_4070_TI_SUPER,
        ada.RTX_4090,
        ada.L4,
        ada.L40,
        ada.L40S,
        hopper.H100,
        hopper.H100_500W,
        hopper.H100_PCIE,
        hopper.H100_NVL,
        hopper.H200,
        hopper.H200_NVL,
        hopper.H800,
        hopper.H20,
        hopper.GH200,
        hopper.GH200_HBM3E,
        blackwell.B200,
        blackwell.B200_750W,
        blackwell.GB200,
        blackwell.B300,
        blackwell.GB300,
        blackwell.RTX_5070_TI_LAPTOP,
        blackwell.RTX_PRO_6000,
        blackwell.RTX_PRO_6000_MAX_Q,
        blackwell.RTX_5090,
        amd.MI300X,
    )
}
