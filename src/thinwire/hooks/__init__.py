"""How torch hands gradients over: DistributedDataParallel, plain modules."""
