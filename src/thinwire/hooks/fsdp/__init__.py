"""Networks of fully_shard: what is exchanged between replicas, part by part."""
