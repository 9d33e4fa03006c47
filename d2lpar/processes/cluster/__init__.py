"""Ranks for a notebook: `d2lpar.cluster(2)` starts them, `ranks.run` and `%%px` use them.

    ranks = par.cluster(2)
    ranks.run(lambda: dist.all_reduce(torch.ones(1)))

They are ipyparallel's engines with torch.distributed set up.
"""
