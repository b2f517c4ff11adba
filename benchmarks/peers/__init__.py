"""How other projects are run for a comparison; the programs are benchmarks/loader.py and benchmarks/peers.py."""
